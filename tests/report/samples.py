"""Reports for tests: one of real ranks, and what can be made of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from gradwire.report import Report, read

SAVED = Path(__file__).with_name("two_ranks.json")
"""What two ranks reported after 20 steps of a transformer in 5 buckets, in version 1.."""

HOSTILE = "<script>alert(1)</script>\"'&]]>\u202e\x00\x1b[31m\ud800</title></svg>" + "x" * 300
"""A name that would run a script, end the page, turn the text or be no text, if it could."""


def saved() -> list[Report]:
    return read(SAVED.read_text("utf-8"))


def earlier() -> list[Report]:
    """Reports of the first rank at earlier steps, with other figures."""
    return [
        replace(saved()[0], step=step, residual_norm=5.0 * step**0.5, wait_ms=900.0 / step)
        for step in range(3, 30, 3)
    ]


def hostile() -> Report:
    """A report in which every text is hostile."""
    first = saved()[0]
    parameters = tuple(
        replace(each, name=HOSTILE + str(index)) for index, each in enumerate(first.parameters)
    )
    return replace(first, codec=HOSTILE, carried_by=HOSTILE, parameters=parameters)


def empty() -> Report:
    """A report before the first step of a model without parameters, on the only rank."""
    nothing: dict[str, Any] = dict.fromkeys(
        ("rank", "step", "steps", "collectives", "state_bytes", "wire_bytes", "dense_wire_bytes"), 0
    )
    times: dict[str, Any] = dict.fromkeys(("encode_ms", "exchange_ms", "decode_ms", "wait_ms"), 0.0)
    return replace(
        saved()[0],
        **nothing,
        **times,
        world_size=1,
        compression=1.0,
        slot_use=0.0,
        achieved=None,
        residual_norm=None,
        parameters=(),
        timeline=(),
    )
