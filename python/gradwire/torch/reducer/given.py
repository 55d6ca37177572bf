"""Checks the codec passed to `attach`, and explains common mistakes."""

from gradwire._part import Part
from gradwire.codec import Codec
from gradwire.presets import PRESETS

__all__ = ["check_codec"]


def check_codec(codec: object) -> None:
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
    raise TypeError(f"attach() takes a gradwire.Codec, such as {advice}; got {given}")
