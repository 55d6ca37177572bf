"""Reports from JSON, which may come from anywhere and is checked field by field."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_args

from gradwire.report.figures import ReportFields

MARK = "gradwire_report"  # the key of the format's version, which marks an object as a report
VERSION = 1

_LARGEST = 2**63  # upper bound of all figures; floats represent integers below it closely enough


def objects(text: str) -> Iterator[Mapping[str, Any]]:
    """Yield the objects in a text: one, a list, or several one after another, as in JSON lines.

    Raises a ValueError if it is not JSON, or is empty or contains anything but objects.
    """
    decoder, at, found = json.JSONDecoder(parse_constant=_no_constant), 0, False
    text = text.removeprefix("\ufeff")
    while (at := _skip_space(text, at)) < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"not JSON: {error.msg} in line {error.lineno}, column {error.colno}"
            ) from None
        except RecursionError:
            raise ValueError("not a report: nested too deeply") from None
        for each in value if isinstance(value, list) else [value]:
            if not isinstance(each, dict):
                raise ValueError(f"a report is a JSON object, not {_kind(each)}")
            found = True
            yield each
    if not found:
        raise ValueError("there is no report in it: write one with Report.to_json()")


def to_fields(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a report; raise a ValueError if it is not from `Report.to_json`."""
    version = found.get(MARK)
    if version is None:
        raise ValueError(
            f"not a report of this gradwire version: it has no {MARK!r}. Write it again with "
            "handle.report().to_json()"
        )
    if version != VERSION or isinstance(version, bool):
        raise ValueError(
            f"the report has version {_short(version)}, but this gradwire reads version {VERSION}: "
            "use the gradwire that wrote it"
        )
    checked = _object({name: found[name] for name in found if name != MARK}, ReportFields, "")
    if checked["rank"] >= checked["world_size"]:
        raise ValueError(f"rank {checked['rank']} of {checked['world_size']} ranks")
    return checked


def _object(found: Any, kind: type[Any], where: str) -> dict[str, Any]:
    """Check that an object has the fields of a dataclass, and no others, each of its type."""
    if not isinstance(found, dict):
        raise ValueError(f"{where or 'the report'} is {_kind(found)}, not an object")
    types = {field.name: field.type for field in fields(kind)}
    missing, unknown = sorted(types.keys() - found.keys()), sorted(found.keys() - types.keys())
    if missing or unknown:
        what = f"lacks {missing[0]!r}" if missing else f"has an unknown {_short(unknown[0])}"
        raise ValueError(f"{where or 'the report'} {what}")
    prefix = f"{where}." if where else ""
    return {name: _value(found[name], types[name], prefix + name) for name in types}


def _value(value: Any, kind: Any, where: str) -> Any:
    """Check that a value is of a field's type, and return it as that."""
    if isinstance(kind, type) and is_dataclass(kind):
        return kind(**_object(value, kind, where))
    if kind == float | None:
        return None if value is None else _value(value, float, where)
    if kind in _PLAIN:
        is_right, noun = _PLAIN[kind]
        if not is_right(value):
            raise ValueError(f"{where} is {_short(value)}, not {noun}")
        return kind(value)
    item, more = get_args(kind)  # of a tuple: of any length, or an interval
    if more is ...:
        if not isinstance(value, list):
            raise ValueError(f"{where} is {_kind(value)}, not a list")
        return tuple(_value(each, item, f"{where}[{at}]") for at, each in enumerate(value))
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"{where} is {_short(value)}, not a beginning and an end")
    first, last = (_value(each, float, where) for each in value)
    if first > last:
        raise ValueError(f"{where} ends before it begins: {_short(value)}")
    return first, last


def _is_number(value: Any) -> bool:
    right = type(value) in (int, float) and 0 <= value < _LARGEST
    return right and math.isfinite(value)


_PLAIN: dict[Any, tuple[Callable[[Any], bool], str]] = {
    int: (lambda value: type(value) is int and 0 <= value < _LARGEST, "a count"),
    float: (_is_number, "a number from 0 to 2**63"),
    bool: (lambda value: type(value) is bool, "true or false"),
    str: (lambda value: type(value) is str, "a string"),
}
"""A test of each plain type, and its name in errors."""


def _no_constant(name: str) -> float:
    raise ValueError(f"not a report: {name} is not a number")


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    return names.get(type(value), "null" if value is None else "a number")


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        text = "a number"
    return text if len(text) <= 60 else text[:57] + "..."
