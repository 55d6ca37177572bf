"""Presets by name: ``gradwire codecs`` lists them and their papers, other commands build them."""

import argparse
import difflib
import inspect
import json
import sys
from collections.abc import Sequence

from gradwire._codec import Codec
from gradwire.errors import PluginError
from gradwire.presets import PRESETS, Preset, codec, required


def main(argv: Sequence[str]) -> int:
    parser = make_parser()
    options = parser.parse_args(argv)
    names = list(PRESETS) if options.name is None else [options.name]
    if options.name not in (None, *PRESETS):
        near = " or ".join(difflib.get_close_matches(options.name, PRESETS))
        hint = f"did you mean {near}?" if near else "`gradwire codecs` lists them"
        parser.error(f"there is no preset {options.name!r}: {hint}")
    presets, failed = [], []
    for name in names:
        try:
            presets.append(PRESETS[name])
        except PluginError as error:
            failed.append(error)
    if options.json:
        print(json.dumps([_as_dict(preset) for preset in presets], indent=2))
    elif options.papers or options.name is not None:
        print("\n\n".join(_as_text(preset, options.name is not None) for preset in presets))
    else:
        width = max((len(preset.name) for preset in presets), default=0)
        for preset in presets:
            print(f"{preset.name:<{width}}  {preset.summary}")
        print("\n`gradwire codecs NAME` shows the parts and the paper of one, --papers all papers.")
    for failure in failed:
        print(f"gradwire codecs: {failure}", file=sys.stderr)
    return 1 if failed else 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gradwire codecs", description="List the presets and the papers they implement."
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="show this one, with its parts")
    parser.add_argument("--papers", action="store_true", help="print calls, options and papers")
    parser.add_argument("--json", action="store_true", help="print a JSON array")
    return parser


def _as_dict(preset: Preset) -> dict[str, str | None]:
    return {
        "name": preset.name,
        "call": _call(preset),
        "signature": _signature(preset),
        "summary": preset.summary,
        "paper": preset.paper,
    }


def _as_text(preset: Preset, parts: bool) -> str:
    texts = [preset.summary]
    if options := _signature(preset).removeprefix(preset.build.__name__)[1:-1]:
        texts.append(f"options: {options}")
    if parts:
        texts.append(f"codec: {preset.build(**preset.example)!r}")
    if preset.paper is not None:
        texts.append(preset.paper)
    return "\n".join([_call(preset), *(f"    {text}" for text in texts)])


def _call(preset: Preset) -> str:
    """Return an expression that builds the codec, given that its module is imported."""
    module = preset.build.__module__
    return f"{'gradwire' if module.startswith('gradwire.') else module}.{preset.call}"


def _signature(preset: Preset) -> str:
    """Return a preset's signature without the options that all presets share."""
    signature = inspect.signature(preset.build)
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name not in _COMMON
    ]
    signature = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    return f"{preset.build.__name__}{signature}"


_COMMON = ("quantize", "memory", "indices", "exchange")  # options that all presets share


def unfit(name: str) -> str | None:
    """Return why a preset cannot be built from name and ratio alone, or None if it can."""
    try:
        build(name, 0.01)
    except ValueError as error:
        return str(error)
    except TypeError:
        needed = ", ".join(option for option in required(PRESETS[name]) if option != "ratio")
        return f"{name} needs {needed}, which has no option here"
    return None


def build(name: str, ratio: float | None) -> Codec:
    """Build a preset by name as `gradwire.codec`, with the ratio if it takes one."""
    takes_ratio = name in PRESETS and "ratio" in inspect.signature(PRESETS[name].build).parameters
    return codec(name, ratio=ratio) if takes_ratio else codec(name)
