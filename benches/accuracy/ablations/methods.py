"""What is compared, by the names that the plan and the records use."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gradwire
from benches.accuracy.methods import METHODS as METHODS_BY_NAME
from benches.accuracy.methods import SGD, Method
from gradwire import Codec
from gradwire.exchange import AllGather
from gradwire.memory import AdamCorrection, MomentumCorrection, NoMemory, Residual
from gradwire.presets import PRESETS
from gradwire.quantize import BFloat16, Float8, Float32, Quantizer, SignScale, TwoMeans
from gradwire.schedule import BySteps, WarmUp
from gradwire.sparsify import All, TopK

from .variant import Variant

NO_MOMENTUM = {"betas": (0.0, 0.999), "weight_decay": 0.01}
EMBEDDINGS = ("character", "position")

TOPK = gradwire.topk(ratio=0.01)


def updates(codec: Codec, **moments: Any) -> Method:
    """Return a codec that is given Adam's steps of each rank, with its optimizer."""
    memory = AdamCorrection(**moments)
    betas = (0.9, memory.beta2)
    return Method(replace(codec, memory=memory), options={"betas": betas, "weight_decay": 0.01})


def _sparse(ratio: float, quantize: Quantizer | None = None, **moments: Any) -> Method:
    return updates(Codec(sparsify=TopK(ratio=ratio), quantize=quantize or Float32()), **moments)


def _every(quantize: Quantizer) -> Method:
    return updates(Codec(sparsify=All(), quantize=quantize))


def _sgd(codec: Codec | None, momentum: float = 0.9) -> Method:
    return Method(codec, "sgd", {**SGD, "momentum": momentum})


def presets() -> Iterator[tuple[str, Codec]]:
    """Yield the presets with error feedback, as `python -m benches.presets` calls them."""
    for name, preset in PRESETS.items():
        codec = preset.build(**preset.example)
        if isinstance(codec.memory, Residual):
            yield name, replace(codec, exchange=AllGather())


def _presets() -> Iterator[tuple[str, Method]]:
    for name, codec in presets():
        yield f"{name}, AdamW", Method(codec)
        yield f"{name}, AdamW without beta1", Method(codec, options=NO_MOMENTUM)
        yield f"{name}, updates", updates(codec)


WARM_UPS = ((0.02, 100), (0.05, 50), (0.05, 100), (0.05, 200))
"""Ratios, and for how many steps."""


def warm_up_name(ratio: float, steps: int) -> str:
    """Return the name of `adam(0.01)` that begins with another ratio for some steps."""
    return f"adam(0.01), {100 * ratio:g}% for {steps} steps"


def _warm_ups() -> Iterator[tuple[str, Method]]:
    yield "adam(0.01)", METHODS_BY_NAME["adam(0.01)"]
    for ratio, steps in WARM_UPS:
        schedule = BySteps(WarmUp((ratio,)), steps)
        yield warm_up_name(ratio, steps), Method(gradwire.adam(0.01), schedule=schedule)


def _one_bit() -> Iterator[tuple[str, Method]]:
    for column in (32, 128, 512, 1024):
        yield f"two means of {column}", _every(TwoMeans(column))
    yield "sign, one mean", _every(SignScale())
    yield "sign, one rms", _every(SignScale("rms"))
    for ratio in (0.3, 0.1, 0.03, 0.01, 0.005):
        yield f"signs of {100 * ratio:g}%", _sparse(ratio, SignScale())
    yield "two means of 10%", _sparse(0.1, TwoMeans(1 << 14))


METHODS: dict[str, Method | Variant] = {
    "dense": Method(),
    "dense without beta1": Method(options=NO_MOMENTUM),
    "dense, clip 1": Variant(None, "gradients", 0.9, second="received", clip_average=1.0),
    "updates": updates(TOPK),
    # What is sent, where the moments are, and what v sees.
    "updates, beta1 0.9": Variant(TOPK, beta1=0.9),
    "steps": Variant(TOPK, "steps"),
    "updates, v of all": Variant(TOPK, second="all"),
    "gradients, v of all": Variant(TOPK, "gradients", second="all"),
    "gradients, v of all, beta1 0.9": Variant(TOPK, "gradients", 0.9, second="all"),
    "everything, updates": Variant(Codec(sparsify=All(), memory=NoMemory())),
    # Ranks.
    "updates, v shared every 10": Variant(TOPK, share=10),
    "updates, v shared every 100": Variant(TOPK, share=100),
    # Clipping.
    "updates, clip 1": Variant(TOPK, clip=1.0),
    "updates, clip 1.4": Variant(TOPK, clip=2**0.5),
    "updates, clip after": Variant(TOPK, clip_average=1.0),
    # Moments and values.
    "updates, beta2 0.99": updates(TOPK, beta2=0.99),
    "updates, beta2 0.95": updates(TOPK, beta2=0.95),
    "updates, bfloat16": _sparse(0.01, BFloat16()),
    "updates, float8": _sparse(0.01, Float8()),
    "signs of momentum": Variant(TOPK, "signs", 0.9, 0.99),
    "signs of gradients": Variant(TOPK, "signs", 0.0, 0.99),
    # Ratios.
    "updates, 5%": _sparse(0.05),
    "updates, 0.2%": _sparse(0.002),
    "updates, 0.1%": _sparse(0.001),
    "updates, 0.2%, first tenth 5%": replace(_sparse(0.002), schedule=WarmUp((0.05,))),
    "updates, first tenth 5%": replace(_sparse(0.01), schedule=WarmUp((0.05,))),
    "updates, first fifth 10%": replace(_sparse(0.01), schedule=WarmUp((0.1, 0.1))),
    # Which parameters.
    "updates, embeddings dense": Variant(TOPK, dense=EMBEDDINGS),
    "updates, head dense": Variant(TOPK, dense=("head",)),
    "topk, embeddings dense": Variant(TOPK, "gradients", second="received", dense=EMBEDDINGS),
    # SGD.
    "dense, SGD": _sgd(None),
    "topk, SGD": _sgd(TOPK),
    "topk, SGD without momentum": _sgd(TOPK, 0.0),
    "dgc, SGD": _sgd(gradwire.dgc(ratio=0.01)),
    "dgc unmasked, SGD": _sgd(gradwire.dgc(ratio=0.01, masking=False)),
    "dgc exact unmasked, SGD": _sgd(
        gradwire.topk(ratio=0.01, memory=MomentumCorrection(masking=False))
    ),
    "topk 0.1%, SGD": _sgd(gradwire.topk(ratio=0.001)),
    "dgc 0.1%, SGD": _sgd(gradwire.dgc(ratio=0.001)),
    "dgc unmasked 0.1%, SGD": _sgd(gradwire.dgc(ratio=0.001, masking=False)),
    **dict(_presets()),
    **dict(_one_bit()),
    **dict(_warm_ups()),
}
