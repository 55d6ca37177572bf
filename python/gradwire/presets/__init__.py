"""Published methods and common baselines, each a composition of parts.

The options ``quantize``, ``memory``, ``indices`` and ``exchange``, in this order after a preset's
own, are the other parts of the `gradwire.Codec`: how values are coded, what happens to entries that
are not sent, how positions are coded, and how ranks combine their frames, which depends on the
number of ranks unless given. A preset has all of them except those that the method itself
determines; those that send every entry have no ``indices``.

``ratio`` is the share of the entries to send, 0.01 by default. `codec` builds a preset by name, and
`PRESETS` lists them for tools and command lines.
"""

import contextlib
import difflib
import inspect
from collections.abc import Mapping
from typing import Any

from gradwire._codec import Codec
from gradwire._part import Part
from gradwire.presets._registry import OWN as OWN
from gradwire.presets._registry import Preset as Preset
from gradwire.presets._registry import Registry

# One line a family, in display order: importing a function registers it.
# isort: off
from gradwire.presets.sparse import *  # noqa: F403
from gradwire.presets.quantized import *  # noqa: F403
from gradwire.presets.hybrid import *  # noqa: F403
# isort: on

PRESETS: Mapping[str, Preset] = Registry(OWN)  #: in display order; those of plugins come last

__all__ = ["PRESETS", "Preset", "codec", *(preset.name for preset in OWN)]


def codec(codec: str | Codec, /, **options: Any) -> Codec:
    """Build a codec by the name of its preset; return a codec unchanged.

    Parameters
    ----------
    codec : str or gradwire.Codec
        A name of `PRESETS`, those of other distributions included.
    options
        Those of the preset.

    Returns
    -------
    gradwire.Codec

    Raises
    ------
    ValueError
        There is no such preset, or an option is out of range.
    TypeError
        The argument is neither a name nor a codec; the preset does not have an option, or needs one
        that is not given; an option has the wrong type; or options are given with a codec.
    PluginError
        The preset of another distribution cannot be used.

    Examples
    --------
    >>> codec = gradwire.codec("adam", ratio=0.05)
    """
    if isinstance(codec, Codec):
        if options:
            raise TypeError(
                f"options are only for the name of a codec, got {', '.join(options)} with "
                f"{codec!r}: codec.replace() makes a copy with other parts"
            )
        return codec
    if not isinstance(codec, str):
        raise TypeError(
            f'gradwire.codec() takes the name of a preset, such as "topk", or a gradwire.Codec, '
            f"{advice(codec)}"
        )
    if codec not in PRESETS:
        near = difflib.get_close_matches(codec.lower(), PRESETS)
        meant = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(f"unknown codec {codec!r}; choose from {', '.join(PRESETS)}{meant}")
    preset = PRESETS[codec]
    if needed := [name for name in required(preset) if name not in options]:
        such = "".join(f", {name}={value!r}" for name, value in preset.example.items())
        raise TypeError(f'{codec} needs {", ".join(needed)}: gradwire.codec("{codec}"{such})')
    return preset.build(**options)


def call_of(codec: object) -> str:
    """Return the call that makes a codec, "gradwire.adam(ratio=0.02)", or its repr."""
    if isinstance(codec, Mapping):
        return f"{{{', '.join(f'{key!r}: {call_of(part)}' for key, part in codec.items())}}}"
    if isinstance(codec, list):
        return f"[{', '.join(map(call_of, codec))}]"
    calls = [repr(codec)]
    if not isinstance(codec, Codec):
        return calls[0]
    for preset in OWN:
        parts = (codec, codec.sparsify, codec.quantize, codec.memory)
        options, shown = {}, []
        for name, option in inspect.signature(preset.build).parameters.items():
            for part in parts:
                if (value := getattr(part, name, None)) is not None:
                    options[name] = value
                    if name == "ratio" or value != option.default:
                        shown.append(f"{name}={value!r}")
                    break
        with contextlib.suppress(ValueError, TypeError):  # of options of another preset
            if preset.build(**options) == codec:
                calls.append(f"gradwire.{preset.name}({', '.join(shown)})")
    return min(calls, key=len)  # a "float8" is a "dense" with more options


def required(preset: Preset) -> list[str]:
    """Return the names of the options that a preset cannot be built without."""
    return [
        name
        for name, option in inspect.signature(preset.build).parameters.items()
        if option.default is option.empty
        and option.kind not in (option.VAR_POSITIONAL, option.VAR_KEYWORD)
    ]


def advice(value: object) -> str:
    """Return the end of an error for an invalid codec: what to pass, and what was given."""
    named = value if isinstance(value, str) else getattr(value, "__name__", None)
    shown = f"the {type(value).__name__} {value!r}"
    right = "gradwire.topk(ratio=0.01)"
    if isinstance(named, str) and named in PRESETS:
        preset = PRESETS[named]
        right = f"gradwire.{preset.call}"
        if value is preset.build:
            shown = f"the function {named} itself; call it"
    elif isinstance(value, Part):
        shown = f"one part of a codec, {value!r}"
        right = "gradwire.Codec(sparsify=..., quantize=..., memory=...)"
    return f"such as {right}; got {shown}"
