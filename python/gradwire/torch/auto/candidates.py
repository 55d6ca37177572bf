"""The candidates of ``"auto"``: the codec that suits the optimizer, and its ratios."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from gradwire import _validate
from gradwire._auto import ladder
from gradwire.exchange.owners import owners_for
from gradwire.presets import adam, dgc, float8, topk
from gradwire.schedule import Constant, Schedule
from gradwire.schedule.warm_up import RATIO
from gradwire.torch.engine.pairing import (
    PairingWarning,
    check_optimizer,
    has_momentum,
    why_unsuited,
)
from gradwire.torch.errors import warn
from gradwire.torch.optim import family_of

if TYPE_CHECKING:
    from gradwire._codec import Codec
    from gradwire.exchange.owners import Owners

AUTO: Literal["auto"] = "auto"
DEFAULT = 0.01
"""The least ratio by default: where accuracy has been measured to be that of dense training."""


@dataclass(frozen=True)
class Automatic:
    """The limits of automatic decisions."""

    codec: "Codec"  # at the least ratio
    ratios: tuple[float, ...]
    """That may be used, from the largest; empty for a codec without a ratio."""
    owners: "Owners | None" = None
    """The exchange that may be used in place of the codec's own, an all-gather."""
    halves: bool = True  # ranks can add up in bfloat16
    meets_late: bool = False  # where ranks meet, a pass begins only after the backward pass


def choices_of(
    codec: Any,
    optimizer: object,
    min_ratio: float | None,
    schedule: Schedule | None,
    hierarchy: object = None,
    low_memory: bool | None = None,
    *,
    owners: bool = False,
) -> tuple[Any, Automatic | None]:
    """Return the initial codec of an attachment, and for ``"auto"`` the candidates.

    None selects the codec that suits the optimizer. Raises a TypeError or a ValueError if other
    arguments are incompatible.
    """
    if isinstance(codec, str) and codec == AUTO:
        codec = codec_for(optimizer, min_ratio)
    elif min_ratio is not None:
        raise ValueError('min_ratio= bounds what "auto" may choose; a codec has its own ratio')
    if codec is None:
        return default_codec(optimizer), None
    if not isinstance(codec, Automatic):
        return codec, None
    check_alone(schedule, hierarchy, low_memory)
    chosen = codec.codec
    parts = chosen.sparsify, chosen.quantize, chosen.memory
    return chosen, replace(codec, owners=owners_for(*parts) if owners else None)


def default_codec(optimizer: object) -> "Codec":
    """Return the codec that suits an optimizer, at a ratio of 0.01.

    Adam's steps for Adam and AdamW, momentum for SGD with momentum, top-k for plain SGD. Any other
    optimizer gets 8 bits per entry, with a `PairingWarning`: error feedback in front of a first
    moment costs accuracy. Raises a TypeError without an optimizer of torch.
    """
    optimizer = _optimizer(optimizer, "attach(model)", "codec that suits it")
    unsuited = why_unsuited(optimizer)
    if unsuited:
        warn(
            f"{unsuited}, so gradients are sent as gradwire.float8(), with a quarter of the bytes. "
            "For another codec: attach(model, codec, optimizer=optimizer)",
            PairingWarning,
        )
        return float8()
    if family_of(optimizer) == "adam":
        return adam(DEFAULT)
    return dgc(DEFAULT) if has_momentum(optimizer) else topk(DEFAULT)


def codec_for(
    optimizer: object, min_ratio: float | None = None, *, clips: bool = False
) -> Automatic:
    """Return the candidates of ``"auto"`` for an optimizer.

    With ``clips``, the program clips exchanged values, which must therefore be gradients. Raises a
    TypeError if the optimizer is missing or none of torch, and as `least_ratio` does.
    """
    optimizer = _optimizer(optimizer, 'attach(model, "auto")', "codec that keeps the accuracy")
    least = least_ratio(min_ratio)
    if family_of(optimizer) == "adam" and not (clips or why_unsuited(optimizer)):
        # More than that can ruin training at rates that are right for dense gradients.
        return Automatic(adam(ratio=least), ladder(least, most=RATIO))
    if any("betas" in group for group in optimizer.param_groups):
        return Automatic(float8(), ())  # error feedback in front of a first moment costs accuracy
    return Automatic(topk(ratio=least), ladder(least))


def _optimizer(optimizer: object, call: str, codec: str) -> torch.optim.Optimizer:
    if optimizer is None:
        raise TypeError(
            f"{call} needs optimizer=, because the {codec} depends on it: pass the "
            "optimizer of the model, or a codec, such as gradwire.topk(ratio=0.01)"
        )
    check_optimizer(optimizer)
    assert isinstance(optimizer, torch.optim.Optimizer)  # or it had raised
    return optimizer


def least_ratio(min_ratio: object) -> float:
    """Return the least share of the entries that may be sent.

    Raises a ValueError or a TypeError if the bound is not a share of entries.
    """
    if min_ratio is None:
        return DEFAULT
    if isinstance(min_ratio, int | float) and not isinstance(min_ratio, bool) and min_ratio > 1:
        raise ValueError(
            "min_ratio is the smallest fraction of entries that may be sent, in (0, 1], got "
            f"{min_ratio}: for a compression of {min_ratio:g} times pass {1 / min_ratio:g}"
        )
    return _validate.unit_interval("min_ratio", min_ratio)


def check_alone(
    schedule: Schedule | None, hierarchy: object = None, low_memory: bool | None = None
) -> None:
    """Raise a ValueError for options that decide themselves how gradients are sent."""
    decides = schedule not in (None, Constant())
    reasons = {
        "schedule=": (decides, "a schedule also sets the ratio"),
        "hierarchy=": (hierarchy is not None, "the level inside a node is not measured"),
        "low_memory=": (bool(low_memory), "changing the exchange undoes a step"),
    }
    for name, (given, why) in reasons.items():
        if given:
            raise ValueError(
                f'"auto" does not work with {name}, because {why}: leave it out, or attach a codec'
            )


def check_measurable(named: Mapping[str, torch.Tensor], *, scaled: bool, whole: bool) -> None:
    """Raise a ValueError for options that cannot be timed on the host, or undone."""
    on = sorted({each.device.type for each in named.values()} - {"cpu"})
    if on:
        raise ValueError(
            f'"auto" uses the clock of the host, which does not see when {", ".join(on)} is done: '
            "attach a codec, or train without gradwire"
        )
    if scaled:
        raise ValueError(
            '"auto" does not work with grad_scaler=, because skipped steps would distort its '
            "timings: train in bfloat16 without a scaler, or attach a codec"
        )
    if not whole:
        raise ValueError(
            '"auto" does not work with skip_all_reduce_unused_params, which hides where a pass '
            "ends: wrap the model with only find_unused_parameters, or attach a codec"
        )
