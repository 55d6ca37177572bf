"""When, where and with what a figure was measured: kept in every record, and compared."""

import datetime
from collections import Counter
from collections.abc import Iterable
from typing import Any

import gradwire
from benches.accuracy.store import Record, versions
from benches.harness import machine

__all__ = ["circumstances", "listed", "same_machine", "same_versions", "where", "with_what"]

MACHINE = ("architecture", "processor", "cores", "simd")
"""What makes a machine another one, as far as times go."""


def circumstances() -> dict[str, Any]:
    """Return day, machine and versions, as they are now."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {**machine.machine(), "simd": gradwire.simd_level()},
        "versions": dict(versions()),
    }


def same_versions(record: Record) -> bool:
    """Tell whether a record was made with the versions that are installed now."""
    return bool(record.get("versions") == versions())


def same_machine(record: Record) -> bool:
    """Tell whether a record was made on a machine like this one."""
    now, then = circumstances()["machine"], record.get("machine", {})
    return all(now.get(each) == then.get(each) for each in MACHINE)


def where(record: Record) -> str:
    """Return the machine in words."""
    found = record["machine"]
    simd = f", {found['simd']}" if "simd" in found else ""
    return f"{found['processor']}, {found['cores']} cores{simd}"


def with_what(record: Record) -> str:
    """Return the versions in words."""
    return ", ".join(f"{name} {each}" for name, each in record["versions"].items())


def listed(records: Iterable[Record]) -> str:
    """Return all circumstances of some records, and of how many each holds if they differ."""
    found = Counter(
        f"{record.get('date', 'no date')[:10]}, {where(record)}; {with_what(record)}"
        for record in records
    )
    if len(found) == 1:
        return f"{next(iter(found))}."
    return " ".join(f"{count} of these: {each}." for each, count in found.items())
