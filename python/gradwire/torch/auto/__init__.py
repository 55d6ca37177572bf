"""What ``"auto"`` chooses from, and the options that go with it: see ``docs/auto.md``."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gradwire import _validate
from gradwire.memory import Memory
from gradwire.presets import float8
from gradwire.schedule import Constant, Schedule
from gradwire.torch.engine.config import Assignment, Codecs
from gradwire.torch.engine.pairing import PairingWarning, default_codec, other_than_known
from gradwire.torch.errors import warn

if TYPE_CHECKING:
    from gradwire.torch.auto.controller import AutoController, AutoScheduler

__all__ = ["AUTO", "Automatic", "choices_of", "clipped"]

AUTO: Literal["auto"] = "auto"


@dataclass(frozen=True)
class Automatic:
    """The codec that ``"auto"`` chooses or not, and what an attachment needs to decide."""

    codec: Codecs

    @property
    def scheduler(self) -> "type[AutoScheduler]":
        """The class of the scheduler, which only attachments that decide import."""
        from gradwire.torch.auto.controller import AutoScheduler

        return AutoScheduler

    def controller(self, *parts: Any) -> "AutoController":
        """Return the object that decides for an attachment with these parts."""
        from gradwire.torch.auto.controller import AutoController

        return AutoController(*parts)


def choices_of(
    codec: Any,
    optimizer: object,
    min_ratio: float | None,
    schedule: Schedule | None,
    hierarchy: object = None,
) -> tuple[Any, Automatic | None]:
    """Return the codec of an attachment, and for ``"auto"`` what decides whether it is used.

    None selects the codec that suits the optimizer. Raises a TypeError or a ValueError if other
    arguments are incompatible.
    """
    if isinstance(codec, str) and codec == AUTO:
        codec = codec_for(optimizer, min_ratio)
    elif min_ratio is not None:
        raise ValueError('min_ratio= is the ratio of the codec of "auto"; a codec has its own')
    if codec is None:
        return default_codec(optimizer), None
    if not isinstance(codec, Automatic):
        return codec, None
    for option, present, why in (
        ("schedule=", schedule not in (None, Constant()), "a schedule also sets the ratio"),
        ("hierarchy=", hierarchy is not None, "moments are divided among the ranks of a node"),
    ):
        if present:
            raise ValueError(
                f'"auto" does not work with {option}, because {why}: leave it out, or attach a '
                "codec"
            )
    return codec.codec, codec


def codec_for(
    optimizer: object, min_ratio: float | None = None, *, clips: bool = False
) -> Automatic:
    """Return what ``"auto"`` chooses from with an optimizer.

    With ``clips``, the program clips exchanged values, which must therefore be gradients. Raises a
    TypeError if the optimizer is missing or none of torch.
    """
    if min_ratio is not None:
        _validate.unit_interval("min_ratio", min_ratio)
    codec = default_codec(optimizer, min_ratio)
    return Automatic(float8() if clips and _computing(codec) else codec)


def _computing(codec: Codecs) -> list[Memory]:
    """Return the memories that send updates or momentum."""
    memories = [each.memory for each in Assignment(codec).codecs]
    return [memory for memory in memories if memory.updates or memory.corrects]


def clipped(
    codec: Any, optimizer: Any, scaler: object, options: dict[str, Any]
) -> tuple[Any, bool]:
    """Return a codec for a trainer that clips, and whether the optimizer's step exchanges.

    It does if the codec sends updates or momentum: each rank then clips its own gradients before.
    Takes ``min_ratio`` from the options for ``"auto"``. Raises a ValueError if a codec was given
    and gradients cannot be exchanged in the step.
    """
    if codec == AUTO:
        return codec_for(optimizer, options.pop("min_ratio", None), clips=True), False
    chosen = default_codec(optimizer) if codec is None else codec
    computing = _computing(chosen)
    if not computing:
        return chosen, False
    problem = "there is a loss scaler: use bfloat16" if scaler is not None else ""
    problem = other_than_known(optimizer) or problem
    if not problem:
        return chosen, True
    why = f"gradients cannot be clipped before they are exchanged, because {problem}"
    if codec is not None:
        raise ValueError(
            f"{why}. What {computing[0]!r} sends is not gradients: leave the codec out, or do not "
            "clip"
        )
    warn(
        f"{why}; so they are sent as gradwire.float8(), with a quarter of the bytes",
        PairingWarning,
    )
    return float8(), False
