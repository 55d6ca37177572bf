"""The comparison as a page of the documentation."""

from __future__ import annotations

from gradwire.cli.compare.results import Comparison
from gradwire.cli.compare.table import HEADINGS, reading, row
from gradwire.presets import PRESETS

__all__ = ["document"]

_HEAD = """\
# All presets side by side

`gradwire compare` trains the demo's two models in {ranks} processes on one machine: without
compression, with torch's bf16 hook, and with each preset. Every run of a seed starts from the same
weights and sees the same data in the same order for the same number of steps{seeds}. The tables
show what each method sends and what the model has learned by then. How much time that saves on a
slow link is shown by [`gradwire demo`](demo.md); [which one to take](choosing.md) is a page of its
own.

![Accuracy against bytes](codecs.svg)

"""

_COLUMNS = """\
**kB per step** is the payload that one rank sends; **times fewer** compares it with a ring
all-reduce of float32. **encode** and **decode** are milliseconds per step for all tensors
together, mean on rank 0, with both ranks computing at the same time. **loss** and **accuracy** are
on held-out data after the last step. **points behind** is the accuracy without compression less
the method's own, in percentage points; below zero the method was ahead.

"""

_NOISE = """\
## How much a difference means

{digits}Runs of the text task differ from seed to seed, too. Compare presets by bytes rather than by
their configured ratio: several of them send more or fewer entries than their name suggests. {more}

"""
_DIGITS = (
    "The digits have {images} held-out images, so that one image more or less is {points:.1f} "
    "points: differences below one point say nothing there. "
)
_ONE_SEED = (
    "These are single runs; `gradwire compare --seeds 5` prints the mean and the range of five."
)
_MANY_SEEDS = "The tables have the mean over {seeds} seeds and, in brackets, the range."

_WHY = """\
## Why some presets fall behind

* **Late gradients.** With error feedback an entry waits until it is large enough to be sent: at a
  ratio of 0.01, some hundred steps on average. A run of a few hundred steps ends with part of its
  gradient still in the residual. Longer runs lose less, and so do larger ratios.
* **Adaptive optimizers.** What waits is sent as one sum. Adam and AdamW divide each update by the
  recent size of that entry, so a burst moves the weight less than the same gradient in small steps
  would. That is why the sparse presets trail on the text task (AdamW) and not on the digits (SGD).
  A first moment on top makes it worse; the text task runs without one. See
  [choosing an optimizer](choosing.md#the-optimizer).
* **Momentum in the codec.** `dgc` applies momentum before it selects. It is made for SGD and gains
  nothing beside AdamW.
* **Estimated thresholds.** `gaussiank`, `redsync` and `sidco` estimate the threshold that k entries
  exceed. What they send is near the number asked for, and differs from layer to layer.
* **Fixed thresholds** (`threshold`, `strom`) send what is above them, on one model much and on
  another little. They need tuning for each model; these runs use one value for both.
* **No error feedback.** `terngrad`, `qsgd`, `natural` and `float8` round randomly and keep nothing.
  They are unbiased but noisy, and noise costs more the fewer bits there are.
* **Few bytes.** `adacomp` and `sparseloco` send the least. Put them beside `topk` at a smaller
  ratio rather than beside methods that send twice as much.

"""


def document(comparison: Comparison) -> str:
    """Return the page."""
    seeds = comparison.settings.get("seeds", 1)
    several = f", and each method ran with {seeds} seeds" if seeds > 1 else ""
    parts = [_HEAD.format(ranks=comparison.settings["ranks"], seeds=several)]
    for task, facts in comparison.tasks.items():
        methods = comparison.of(task)
        parts.append(
            f"## {task.capitalize()}\n\n{facts['parameters']:,} parameters, {methods[0].steps} "
            f"steps, {facts['optimizer']}.\n\n"
        )
        parts.append(f"| {' | '.join(HEADINGS)} |\n|---{'|---:' * (len(HEADINGS) - 1)}|\n")
        parts += [f"| {' | '.join(row(summary))} |\n" for summary in methods]
        parts.append("\n")
    parts.append(_COLUMNS)
    parts += [f"* {line}\n" for line in reading(comparison)]
    parts += ["\n", _noise(comparison, seeds), _WHY]
    parts.append("## How each was called\n\n| preset | call | paper |\n|---|---|---|\n")
    parts += [_call(name) for name in dict.fromkeys(e.method for e in comparison.entries)]
    parts.append(f"\n{_machine(comparison)}\n")
    return "".join(parts)


def _noise(comparison: Comparison, seeds: int) -> str:
    images = comparison.tasks.get("digits", {}).get("held_out_images")
    digits = _DIGITS.format(images=images, points=100 / images) if images else ""
    more = _ONE_SEED if seeds == 1 else _MANY_SEEDS.format(seeds=seeds)
    return _NOISE.format(digits=digits, more=more)


def _call(name: str) -> str:
    if name not in PRESETS:
        return ""
    preset = PRESETS[name]
    return f"| {name} | `gradwire.{preset.call}` | {preset.paper or ''} |\n"


def _machine(comparison: Comparison) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in comparison.versions.items())
    machine = comparison.machine
    return f"Measured on {machine['cores']} cores of {machine['processor']}; {versions}."
