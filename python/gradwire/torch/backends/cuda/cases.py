"""Test cases for the trial of a device: all presets, and all options of all parts."""

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from gradwire import presets
from gradwire._codec import Codec, IndexCoding
from gradwire._part import Part
from gradwire.memory import MEMORIES, Memory
from gradwire.quantize import QUANTIZERS, Lossless, Quantizer
from gradwire.sparsify import Sparsifier
from gradwire.torch.backends.cuda.operators import takes

LARGE, SMALL = 2 * 65536 + 37, 4099
"""More than two chunks of the kernels, so that blocks hand on to each other; and less than one."""
_KINDS = {"sparsify": Sparsifier, "quantize": Quantizer, "memory": Memory}


class Case(NamedTuple):
    """A codec, its name in the results, and the length of its tensor."""

    title: str
    codec: Codec
    numel: int


def cases() -> list[Case]:
    """Return the cases that kernels can encode."""
    base = presets.topk(ratio=0.02)
    found = {each.build(**each.example).for_shape((SMALL,)): each.call for each in presets.OWN}
    own = [(codec, part) for codec in found for part in _parts(codec)]
    seen = set[Part]()
    for codec, part in own + [
        (base, kind()) for kind in (*QUANTIZERS, *MEMORIES) if _has_defaults(kind)
    ]:
        name: Any = next(name for name, kind in _KINDS.items() if isinstance(part, kind))
        for options in _choices(part):
            try:
                choice: Any = dataclasses.replace(part, **options)
                if choice not in seen:
                    found.setdefault(codec.replace(**{name: choice}), repr(choice))
            except ValueError:
                continue  # what it does not go with
            seen.add(choice)
    for coding in get_args(IndexCoding):
        found.setdefault(base.replace(indices=coding), f"indices={coding!r}")
    made, large = [Case("no entry", base, 0), Case("one entry", base, 1)], set[type[Part]]()
    for codec, title in found.items():
        if isinstance(codec.quantize, Lossless):  # kernels write the floats themselves
            codec = codec.replace(quantize=codec.quantize.plain)
        if takes(codec):
            first = type(codec.sparsify) not in large  # every sparsifier has a large tensor
            large.add(type(codec.sparsify))
            title = title.replace("gradwire.", "")
            made.append(Case(title, codec, LARGE if first else SMALL))
    return made


def _has_defaults(kind: type[Part]) -> bool:
    """Tell whether a part can be made without options; one with kernels can."""
    missing = dataclasses.MISSING
    return all(
        {each.default, each.default_factory} != {missing} for each in dataclasses.fields(kind)
    )


def _parts(codec: Codec) -> list[Part]:
    return [getattr(codec, name) for name in _KINDS]


def _choices(part: Part) -> Iterator[dict[str, object]]:
    """Yield an empty dict, then each alternative value of an option of a part."""
    yield {}
    hints = get_type_hints(type(part))
    for field in dataclasses.fields(part):
        hint, choices = hints[field.name], list[object]()
        for each in (hint, *get_args(hint)):
            choices += get_args(each) if get_origin(each) is Literal else ()
            choices += (False, True) if each is bool else ()
            choices += (None,) if each is type(None) and field.default is not None else ()
        for choice in choices:
            if field.init and choice != getattr(part, field.name):
                yield {field.name: choice}
