"""Codecs of every exchange, for the laws that all of them keep."""

from typing import Any

import gradwire
from gradwire.exchange import (
    AllGather,
    AllReduce,
    LeaderIndices,
    QuantizedAllReduce,
    ReduceScatter,
)
from gradwire.memory import LowPass, Residual
from gradwire.quantize import BFloat16, Float16, SignScale, Uniform

SEVERAL: dict[str, Any] = {"bucket_cap_mb": 0.01}
"""Options of DDP with which every weight of a test gets a bucket of its own."""
NARROW = Residual(low_memory=True)
OWNERS, SUMS = ReduceScatter(), QuantizedAllReduce()

CODECS = {
    "default": gradwire.topk(ratio=0.05),
    "narrow": gradwire.topk(ratio=0.05, memory=NARROW),
    "senders": gradwire.topk(ratio=0.05, exchange=AllGather(mean="senders")),
    "leader": gradwire.topk(ratio=0.05, exchange=LeaderIndices()),
    "leader-half": gradwire.sidco(ratio=0.05, exchange=LeaderIndices(), quantize=BFloat16()),
    "reduce": gradwire.dense(memory=Residual(), exchange=AllReduce()),
    "reduce-half": gradwire.dense(memory=Residual(), exchange=AllReduce(), quantize=BFloat16()),
    "scattered": gradwire.topk(ratio=0.05, exchange=OWNERS),
    "quantized": gradwire.onebit(exchange=SUMS),
}
"""One of each exchange and of each kind of values on the wire."""

OWNED = {
    "all entries": gradwire.topk(ratio=1.0, exchange=OWNERS),
    "narrow": gradwire.topk(ratio=0.05, exchange=OWNERS, memory=NARROW),
    "float16": gradwire.topk(ratio=0.05, exchange=OWNERS, quantize=Float16()),
    "bfloat16": gradwire.topk(ratio=0.05, exchange=OWNERS, quantize=BFloat16()),
    "signs": gradwire.topk(ratio=0.05, exchange=OWNERS, quantize=SignScale()),
    "blocks": gradwire.topk(ratio=0.05, exchange=OWNERS, quantize=Uniform(bits=4, norm="max")),
    "sidco": gradwire.sidco(ratio=0.05, exchange=OWNERS),
    "dgc": gradwire.dgc(ratio=0.05, exchange=OWNERS),
    "adacomp": gradwire.adacomp(exchange=OWNERS),
    "chunks": gradwire.sparseloco(k=4, chunk=64, exchange=OWNERS),
    "drawn": gradwire.randomk(ratio=0.05, exchange=OWNERS),
    "adaptive": gradwire.adaptive(exchange=SUMS),
    "qsgd": gradwire.qsgd(exchange=SUMS),
    "qsgd-kept": gradwire.qsgd(norm="max", memory=Residual(), exchange=SUMS),
    "terngrad": gradwire.terngrad(exchange=SUMS),
    "float8": gradwire.float8(exchange=SUMS),
    "natural": gradwire.natural(exchange=SUMS),
    "signsgd": gradwire.signsgd(exchange=SUMS, memory=LowPass(beta=0.5)),
    "onebit": gradwire.onebit(exchange=SUMS, memory=NARROW),
    "floats": gradwire.dense(exchange=SUMS, quantize=BFloat16()),
}
"""Codecs of all that owners add up and encode again."""
