"""Checks a codec that a call was given, and explains common mistakes."""

from collections.abc import Iterable

import torch

from gradwire._part import Part
from gradwire.codec import Codec
from gradwire.exchange import Exchange
from gradwire.extension import IndexCoding, Quantizer
from gradwire.presets import PRESETS
from gradwire.torch import backends

__all__ = ["check_codec", "check_frames", "check_memory", "check_place"]


def check_codec(codec: object, call: str = "attach()") -> None:
    """Raise a `TypeError` that says what to pass, unless the argument is a codec."""
    if isinstance(codec, Codec):
        return
    named = codec if isinstance(codec, str) else getattr(codec, "__name__", None)
    given = f"the {type(codec).__name__} {codec!r}"
    advice = "gradwire.topk(ratio=0.01)"
    if isinstance(named, str) and named in PRESETS:
        preset = PRESETS[named]
        advice = f"gradwire.{preset.call}"
        if codec is preset.build:
            given = f"the function {named} itself; call it"
    elif isinstance(codec, Part):
        given = f"one part of a codec, {codec!r}"
        advice = "gradwire.Codec(sparsify=..., quantize=..., memory=...)"
    raise TypeError(f"{call} takes a gradwire.Codec, such as {advice}; got {given}")


def check_frames(codec: Codec, call: str) -> None:
    """Raise a `ValueError` for a codec whose exchange is not one of frames."""
    if codec.exchange.needs_whole_tensor:
        raise ValueError(
            f"{call} takes codecs that encode frames, and {codec.exchange!r} sums factors of the "
            "gradients of a model: use it with attach()"
        )
    if codec.exchange.divides:
        raise ValueError(
            f"{call} gathers frames or sums values, and {codec.exchange!r} is for the gradients of "
            "a model: use it with attach(), or exchange=gradwire.exchange.AllGather() here"
        )


def check_place(exchange: Exchange, tensors: Iterable[torch.Tensor], *, divides: bool) -> None:
    """Raise a `ValueError` for an exchange that cannot be done where these tensors are.

    Parameters
    ----------
    exchange : Exchange
    tensors : iterable of torch.Tensor
    divides : bool
        The ranks of a node divide every gradient.
    """
    if exchange.divides and divides:
        raise ValueError(
            f"{exchange!r} divides every bucket among all ranks, and the ranks of a node divide it "
            "already: use exchange=gradwire.exchange.AllGather(), or leave the hierarchy out"
        )
    on = sorted({str(each.device) for each in tensors if backends.backend_for(each).name == "cuda"})
    if on and not exchange.on_device:
        raise ValueError(
            f"{exchange!r} merges on the host, and residuals of parameters on {', '.join(on)} are "
            "on the device: use exchange=gradwire.exchange.AllGather(), or LeaderIndices()"
        )


def check_memory(codec: Codec, *, whole: bool = True) -> None:
    """Raise a `ValueError` for what goes only with memories that can go back.

    Parameters
    ----------
    codec : Codec
    whole : bool
        As in `Worker`.
    """
    if codec.memory.undoable:
        return
    problem = None
    if not codec.exchange.gathers_frames:
        problem = f"{codec.exchange!r} adds up values before it is known whether the step counts"
    elif isinstance(codec.quantize, Quantizer) or isinstance(codec.indices, IndexCoding):
        problem = "a quantizer or index coding in Python encodes in one go"
    elif not whole:
        problem = "skip_all_reduce_unused_params hides where a step ends"
    if problem is not None:
        raise ValueError(
            f"{codec.memory!r} has one buffer, which cannot go back: it is written at the end of a "
            f"step that is good on all ranks; but {problem}. Attach a codec with low_memory=False"
        )
