"""The cost of exchanges: bytes, seconds and memory, for any number of ranks and any link.

>>> network = gradwire.cost.Network(64, gradwire.cost.Link(bandwidth=1e9, latency=50e-6))
>>> payload = gradwire.cost.Payload.sparse(25_000_000, entries=250_000)
>>> gradwire.cost.simulate(gradwire.exchange.AllGather(), payload, network).seconds

Nothing here needs torch. docs/cost-model.md has the model, docs/cost-measured.md its errors.
"""

from typing import TYPE_CHECKING

from gradwire import _mistakes
from gradwire.cost.calibration import Calibration
from gradwire.cost.measuring import calibrate
from gradwire.cost.methods import Method, bf16, compressed, fp32
from gradwire.cost.network import Link, Network
from gradwire.cost.payload import Payload
from gradwire.cost.prediction import Prediction, Workload, break_even, predict
from gradwire.cost.simulation import ExchangeCost, Support, simulate

__all__ = [
    "Calibration",
    "ExchangeCost",
    "Link",
    "Method",
    "Network",
    "Payload",
    "Prediction",
    "Support",
    "Workload",
    "bf16",
    "break_even",
    "calibrate",
    "compressed",
    "fp32",
    "predict",
    "simulate",
]

if not TYPE_CHECKING:
    __getattr__ = _mistakes.former_names(
        __name__,
        {
            "Exchange": "gradwire.exchange.Exchange",
            "Exchanged": "gradwire.cost.ExchangeCost",
            "GatheredFrames": "gradwire.exchange.AllGather",
            "LowRankAllReduces": "gradwire.exchange.LowRank",
            "PlainRing": "the exchange of gradwire.cost.fp32()",
            "QuantizedAllReduce": "gradwire.exchange.QuantizedAllReduce",
            "RingAllReduce": "gradwire.exchange.AllReduce",
            "SharedPositions": "gradwire.exchange.LeaderIndices",
            "SparseReduceScatter": "gradwire.exchange.ReduceScatter",
            "Bucket": "internal: gradwire.cost.timeline.BucketCost",
            "CodecCost": "internal: gradwire.cost.calibration.CodecCost",
            "Line": "internal: gradwire.cost.calibration.Line",
            "Phase": "internal: gradwire.cost.exchanges.Phase",
            "Timeline": "internal: gradwire.cost.timeline.Timeline",
            "ddp_buckets": "internal: gradwire.cost.timeline.ddp_buckets",
            "information_bits": "internal: gradwire.cost.payload.information_bits",
            "overlapped": "internal: gradwire.cost.timeline.overlapped",
        },
    )
