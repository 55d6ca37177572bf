"""The comparison as a page of the documentation."""

from __future__ import annotations

from gradwire.cli.compare.results import Comparison
from gradwire.cli.compare.table import HEADINGS, reading, row
from gradwire.presets import PRESETS

__all__ = ["document"]

_HEAD = """\
# All presets, side by side

Made by `gradwire compare`. It trains the demo's two models in {ranks} processes on one machine:
once without compression, once with torch's bf16 hook and once with each preset, from the same
weights, on the same data, for the same number of steps. It shows what a method sends and what the
model learns from that; how long a step takes on a slow link is what `gradwire demo` shows.

![Accuracy against bytes](codecs.svg)

"""

_KEY = """\
**kB a step**: payload that a rank sends. **times fewer** than plain float32 by a ring all-reduce.
**bits an entry** of the model, at the same cost of the ring. **encode**, **decode**: all tensors
together, mean milliseconds a step on rank 0, both ranks computing at the same time. **loss** and
**accuracy** on held-out data after the last step; **behind**: points of accuracy below no
compression.
"""


def document(comparison: Comparison) -> str:
    """Return the page."""
    parts = [_HEAD.format(ranks=comparison.settings["ranks"])]
    for task, facts in comparison.tasks.items():
        entries = comparison.of(task)
        parts.append(
            f"## {task.capitalize()}\n\n{facts['parameters']:,} parameters, {entries[0].steps} "
            f"steps, {facts['optimizer']}.\n\n"
        )
        parts.append(f"| {' | '.join(HEADINGS)} |\n|---{'|---:' * (len(HEADINGS) - 1)}|\n")
        parts += [f"| {' | '.join(row(comparison, entry))} |\n" for entry in entries]
        parts.append("\n")
    parts.append(_KEY + "\n")
    parts += [f"* {line}\n" for line in reading(comparison)]
    parts.append("\n## How each was called\n\n| preset | call | paper |\n|---|---|---|\n")
    parts += [_call(name) for name in dict.fromkeys(e.method for e in comparison.entries)]
    parts.append(f"\n{_machine(comparison)}\n")
    return "".join(parts)


def _call(name: str) -> str:
    if name not in PRESETS:
        return ""
    preset = PRESETS[name]
    return f"| {name} | `gradwire.{preset.call}` | {preset.paper or ''} |\n"


def _machine(comparison: Comparison) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in comparison.versions.items())
    machine = comparison.machine
    return f"Measured on {machine['cores']} cores of {machine['processor']}; {versions}."
