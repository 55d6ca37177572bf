"""Write the comparison as a page of the documentation."""

from __future__ import annotations

import textwrap

from benches.harness.tables import about, format_learning_rate
from benches.presets.results import Results, Summary
from benches.presets.table import HEADINGS, reading, row
from gradwire.presets import PRESETS

__all__ = ["document"]

_HEAD = """\
# All presets side by side

`python -m benches.presets` trains the demo's two models in {ranks} processes on one machine:
without compression, with torch's bf16 hook, and with each preset. Every run of a seed starts from
the same weights and sees the same data in the same order for the same number of steps{seeds}. Every
method has the optimizer that is recommended for it, at its best learning rate. The tables show how
much each method sends and how well the model does after that. For the time saved on a slow link,
see [the demo](demo.md); for help with the choice, see [Choosing a codec](choosing.md).

![Accuracy against bytes](codecs.svg)

"""

_COLUMNS = """\
**kB per step** is the payload that one rank sends; **compression** is the payload of a ring
all-reduce of float32 divided by it. **encode** and **decode** are milliseconds per step for all
tensors together, averaged on rank 0 while all ranks compute. **loss** and **accuracy** are measured
on held-out data after the last step. **points behind** is the accuracy without compression minus
the accuracy with the method, in percentage points; negative values mean that the method did better.

{about}

"""

_NOISE = """\
## How much a difference means

{digits}Results on the text task vary from seed to seed as well.
{more}

Compare presets by the bytes they send, not by the ratio they are given: several send more or fewer
entries than the ratio asks for.

"""
_DIGITS = (
    "There are only {images} held-out digits. One of them is {points:.1f} points, so differences\n"
    "below one point mean nothing. "
    "On them `adam` and `adam_onebit` train with AdamW and\n"
    "all others with SGD: part of the difference is that between the optimizers. "
)
_ONE_SEED = (
    "These are single runs; `python -m benches.presets --seeds 5` reports mean and range of five."
)
_MANY_SEEDS = "The tables show the mean over {seeds} seeds and, in parentheses, the range."

_WHY = """\
## Why some presets fall behind

* **Delayed gradients.** With error feedback an entry is sent only once it is large enough: at a
  ratio of 0.01, after a hundred steps on average. A run of a few hundred steps ends with part of
  its gradient still in the residual. Longer runs and larger ratios lose less.
* **Adaptive optimizers.** Adam divides a gradient by its recent magnitude. After a codec with error
  feedback that comes too late: entries are selected and rounded among gradients instead of steps,
  and a delayed gradient is scaled by the learning rate of a later step. A first moment, which
  averages delayed sums once more, costs more than both together, so presets are trained without
  one. `adam` takes Adam's step before it selects entries, and has none of these problems; nor has
  any preset with `memory=gradwire.memory.AdamCorrection()`: in runs of 800 steps all of them then
  end at most 0.02 behind dense AdamW. See [each preset in three ways](ablations.md#presets),
  [what makes the difference](ablations.md#why-a-sparse-codec-in-front-of-adamw-falls-behind) and
  [choosing an optimizer](choosing.md#the-optimizer).
* **One magnitude for all that is sent.** `strom`, `adacomp` and `signsgd` send signs, and one
  magnitude for a tensor or a part of it. That is right for steps, which are all of about one size;
  of gradients, small ones arrive too large or large ones in instalments, and Adam's second moment
  sees neither as they were.
* **Momentum in the codec.** `dgc` applies momentum before selection. It is designed for SGD and
  trained with it on both tasks.
* **Estimated thresholds.** `gaussiank`, `redsync` and `sidco` estimate the threshold that k entries
  exceed. They send more or fewer than k entries, by an amount that varies from layer to layer.
* **Fixed thresholds.** `threshold` and `strom` send every entry above a given value: many for one
  model, few for another. They need tuning per model; these runs use the same value for both.
* **No error feedback.** `terngrad`, `qsgd` and `natural` round stochastically and keep no residual:
  they are unbiased but noisy, and fewer bits mean more noise. `float8` rounds to the nearest code.
* **Few bytes.** `adacomp` and `sparseloco` send the least. Compare them with `topk` at a smaller
  ratio, not with methods that send twice as much.

"""


def document(results: Results) -> str:
    """Return the page."""
    seeds = results.settings.get("seeds", 1)
    several = f", and each method ran with {seeds} seeds" if seeds > 1 else ""
    parts = [_HEAD.format(ranks=results.settings["ranks"], seeds=several)]
    for task, facts in results.tasks.items():
        methods = results.of(task)
        parts.append(
            f"## {task.capitalize()}\n\n{facts['parameters']:,} parameters, {methods[0].steps} "
            "steps.\n\n"
        )
        headings = (*HEADINGS, "optimizer", "learning rate")
        parts.append(f"| {' | '.join(headings)} |\n")
        parts.append(f"|---{'|---:' * (len(HEADINGS) - 1)}|---|---|\n")
        parts += [f"| {' | '.join(_row(summary))} |\n" for summary in methods]
        parts.append("\n")
    parts.append(_COLUMNS.format(about=textwrap.fill(about(), 100, break_on_hyphens=False)))
    parts += [f"* {line}\n" for line in reading(results)]
    parts += ["\n", _noise(results, seeds), _WHY]
    parts.append("## How each preset was called\n\n| preset | call | paper |\n|---|---|---|\n")
    parts += [_call(name) for name in dict.fromkeys(e.method for e in results.runs)]
    parts.append(f"\n{_machine(results)}\n")
    return "".join(parts)


def _row(summary: Summary) -> list[str]:
    return [*row(summary), summary.optimizer, format_learning_rate(summary)]


def _noise(results: Results, seeds: int) -> str:
    images = results.tasks.get("digits", {}).get("held_out_images")
    digits = _DIGITS.format(images=images, points=100 / images) if images else ""
    more = _ONE_SEED if seeds == 1 else _MANY_SEEDS.format(seeds=seeds)
    return _NOISE.format(digits=digits, more=more)


def _call(name: str) -> str:
    if name not in PRESETS:
        return ""
    preset = PRESETS[name]
    return f"| {name} | `gradwire.{preset.call}` | {preset.paper or ''} |\n"


def _machine(results: Results) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    machine = results.machine
    return f"Measured on {machine['cores']} cores of {machine['processor']}; {versions}."
