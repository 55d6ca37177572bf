"""Plot the demo's results: held-out loss and bytes sent, both over training time."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from benches.demo.results import HALVES, PLAIN, Results
from gradwire.cli.plan.quantities import format_rate, size
from gradwire.cli.theme import INK, STYLE, save

# Okabe and Ito's palette, distinguishable for colour-blind readers; line styles and markers carry
# the same information.
_STYLES: dict[str, dict[str, Any]] = {
    PLAIN: {"color": INK, "linestyle": "-", "marker": "o"},
    **{half: {"color": "#E69F00", "linestyle": "--", "marker": "s"} for half in HALVES},
}
_OTHERS: list[dict[str, Any]] = [
    {"color": "#0072B2", "linestyle": "-", "marker": "^"},
    {"color": "#D55E00", "linestyle": "-.", "marker": "D"},
    {"color": "#009E73", "linestyle": ":", "marker": "v"},
    {"color": "#CC79A7", "linestyle": "--", "marker": "P"},
    {"color": "#56B4E9", "linestyle": "-", "marker": "X"},
]


def styles(methods: list[str]) -> dict[str, dict[str, Any]]:
    """Return each method's line style; those of the baselines are fixed."""
    others = [method for method in methods if method not in _STYLES]
    return _STYLES | {method: _OTHERS[i % len(_OTHERS)] for i, method in enumerate(others)}


def draw(results: Results, path: Path) -> None:
    """Save the figure as a PNG: a column per task and link, loss above, bytes below."""
    comparisons, ratio = results.comparisons(), results.settings["ratio"]
    look = styles(list(dict.fromkeys(run.method for run in results.runs)))
    size_of: dict[str, Any] = {"figsize": (4.3 * len(comparisons) + 0.6, 7.2), "squeeze": False}
    figure, axes = plt.subplots(2, len(comparisons), sharex="col", layout="constrained", **size_of)
    for above, below, comparison in zip(*axes, comparisons, strict=True):
        link = format_rate(comparison.rate) if comparison.rate else "loopback"
        above.set_title(f"{comparison.task}, {link}", fontsize=12, fontweight="bold")
        for run in comparison.runs:
            how = {"linewidth": 1.8, "markersize": 4.5, **look[run.method]}
            label = run.label if run.method in _STYLES else f"{run.label}, ratio {ratio:g}"
            seconds = [point["seconds"] for point in run.curve]
            sent = [run.sent_per_step * point["step"] for point in run.curve]
            above.plot(seconds, [point["loss"] for point in run.curve], label=label, **how)
            below.plot(seconds[1:], sent[1:], **how)
        end = comparison.equal_time
        above.axvline(end, color="0.55", linewidth=1, linestyle=(0, (2, 2)), zorder=0)
        above.text(end, 1.0, f" {comparison.fastest.label} finishes", va="top", fontsize=8.5,
                   color="0.35", transform=above.get_xaxis_transform())  # fmt: skip
        _tidy(above, lambda loss, _: f"{loss:g}")
        above.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        above.yaxis.set_minor_formatter(NullFormatter())
        _tidy(below, lambda count, _: size(count))
        below.set_xlabel("training time (s)")
    axes[0][0].set_ylabel("held-out loss (nats, log scale)")
    axes[1][0].set_ylabel("bytes sent by a rank")
    handles, labels = axes[0][0].get_legend_handles_labels()
    where: dict[str, Any] = {"loc": "outside upper center", "ncols": len(labels)}
    figure.legend(handles, labels, frameon=False, fontsize=11, **where)
    save(figure, path, dpi=130)
    plt.close(figure)


def draw_loss(results: Results, path: Path) -> None:
    """Save held-out loss over seconds as an SVG, a panel per task and link, all to one scale."""
    comparisons = results.comparisons()
    look = styles(list(dict.fromkeys(run.method for run in results.runs)))
    with plt.rc_context({**STYLE, "font.size": 11}):
        figure, axes = plt.subplots(
            1, len(comparisons), sharex=True, sharey=True, layout="constrained", squeeze=False,
            figsize=(4.4 * len(comparisons), 3.6),
        )  # fmt: skip
        for each, comparison in zip(axes[0], comparisons, strict=True):
            each.set_title(format_rate(comparison.rate) if comparison.rate else "loopback")
            for run in comparison.runs:
                curve = [(point["seconds"], point["loss"]) for point in run.curve]
                how = {"linewidth": 1.8, "markersize": 4, **look[run.method]}
                each.plot(*zip(*curve, strict=True), label=run.label, **how)
            each.set_xlabel("training time (s)")
            each.set_xlim(left=0)
            each.grid(visible=True, linewidth=0.8)
            each.spines[["top", "right"]].set_visible(False)
        axes[0][0].set_ylabel("held-out loss (nats)")
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, frameon=False, loc="outside upper center", ncols=len(labels))
        save(figure, path)
        plt.close(figure)


def _tidy(axes: Any, shown: Any) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(shown))
    axes.set_xlim(left=0)
    axes.grid(visible=True, color="0.9", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
