"""The tables of docs/ablations.md."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_run
from statistics import mean, stdev

from benches.accuracy.plan import SECTIONS, Section
from benches.accuracy.store import Record
from benches.accuracy.tables import head, rate, row
from benches.compare.blocks import ROOT, replace

from .methods import presets
from .plan import Run, plan
from .results import Mean, means

PAGE = ROOT / "docs" / "ablations.md"


@dataclass(frozen=True)
class Row:
    """A method under a name for readers."""

    name: str
    method: str
    ranks: int = 2
    steps: int = 800
    task: str = "text"


def _rows(*methods: str) -> list[Row]:
    return [Row(method, method) for method in methods]


TOPK = ("topk", "topk, no momentum")
DGC = ("dgc", "dgc unmasked", "topk 0.1%", "dgc 0.1%", "dgc unmasked 0.1%")


def _sgd(
    task: str, title: str, steps: int, names: Sequence[str] = ("dense", *TOPK, *DGC)
) -> list[Row]:
    def method(name: str) -> str:
        name, without, _ = name.partition(", no momentum")
        return f"{name}, SGD without momentum" if without else f"{name}, SGD"

    return [Row(f"{title}: {name}", method(name), task=task, steps=steps) for name in names]


TABLES: Mapping[str, Sequence[Row]] = {
    "ranks": [
        Row("dense", "dense"),
        *(Row(f"updates, ranks: {ranks}", "updates", ranks) for ranks in (1, 2, 4, 8, 16)),
        Row("updates, 8 ranks, v averaged every 10 steps", "updates, v shared every 10", 8),
        Row("updates, 8 ranks, v averaged every 100 steps", "updates, v shared every 100", 8),
        Row("batch 32: dense", "dense", task="text32"),
        *(
            Row(f"batch 32: updates, ranks: {ranks}", "updates", ranks, task="text32")
            for ranks in (2, 8, 32)
        ),
    ],
    "why": [
        Row("dense AdamW", "dense"),
        Row("dense AdamW, β1 = 0", "dense without beta1"),
        Row("top-k of gradients, AdamW", "topk, AdamW"),
        Row("top-k of gradients, AdamW, β1 = 0", "topk, AdamW without beta1"),
        Row("the same, embeddings dense", "topk, embeddings dense"),
        Row("top-k of gradients, v of the true gradients", "gradients, v of all, beta1 0.9"),
        Row("top-k of gradients, v of the true gradients, β1 = 0", "gradients, v of all"),
        Row("top-k of updates, β1 = 0.9 on each rank", "updates, beta1 0.9"),
        Row("top-k of updates", "updates"),
        Row("top-k of updates, embeddings dense", "updates, embeddings dense"),
        Row("top-k of updates, last layer dense", "updates, head dense"),
        Row("top-k of updates, learning rate at the receiver", "steps"),
        Row("top-k of updates, v of all ranks' average", "updates, v of all"),
        Row("all updates", "everything, updates"),
    ],
    "one-bit": _rows(
        "updates",
        "two means of 32",
        "two means of 128",
        "two means of 512",
        "two means of 1024",
        "sign, one mean",
        "sign, one rms",
        "signs of 30%",
        "signs of 10%",
        "two means of 10%",
        "signs of 3%",
        "signs of 1%",
        "signs of 0.5%",
    )
    + [
        Row(f"{name}, 8 ranks", name, 8)
        for name in ("two means of 128", "two means of 1024", "sign, one mean", "signs of 10%")
    ],
    "presets": [
        Row(f"{name}, {shown}", f"{name}, {way}")
        for name, _ in presets()
        for way, shown in (
            ("AdamW", "AdamW"),
            ("AdamW without beta1", "AdamW, β1 = 0"),
            ("updates", "updates"),
        )
    ],
    "sgd": [
        *_sgd("digits", "digits", 1000),
        *_sgd("fashion", "Fashion-MNIST", 1400),
        Row(
            "Fashion-MNIST: dgc of exact top-k, unmasked",
            "dgc exact unmasked, SGD",
            2,
            1400,
            "fashion",
        ),
        *_sgd("fashion without norm", "Fashion-MNIST without BatchNorm", 1400, ("dense", *TOPK)),
    ],
    "clipping": _rows(
        "dense",
        "dense, clip 1",
        "updates",
        "updates, clip 1.4",
        "updates, clip 1",
        "updates, clip after",
    ),
    "ratios": [
        *_rows("updates", "updates, 0.2%", "updates, 0.2%, first tenth 5%", "updates, 0.1%"),
        *(
            Row(f"{name}, 300 steps", name, steps=300)
            for name in (
                "dense",
                "updates",
                "updates, 5%",
                "updates, first tenth 5%",
                "updates, first fifth 10%",
            )
        ),
    ],
    "moments": _rows(
        "updates",
        "updates, beta2 0.99",
        "updates, beta2 0.95",
        "updates, bfloat16",
        "updates, float8",
        "signs of momentum",
        "signs of gradients",
    ),
}


SHORT: Mapping[str, tuple[str, Section]] = {
    "control": ("cart-pole", SECTIONS["control"]),
    "noise": ("noise prediction", SECTIONS["noise"]),
    "text": ("text", SECTIONS["text"]),
}
"""The tasks of short runs, by the names of the plan."""


NOTHING = "No run of these has been made yet."


def tables(made: Mapping[Run, Record]) -> dict[str, list[str]]:
    """Return the tables by name, each of the rows that have results."""
    found = {name: table(rows, made) for name, rows in TABLES.items()}
    return found | {"warm-up": short_runs(made)}


def short_runs(made: Mapping[Run, Record]) -> list[str]:
    """Return the table of warm-ups: a row for each method at each rate, with its seeds."""
    series: dict[Run, list[Record]] = {}
    for run in plan()["warm-up"]:
        if run in made:
            series.setdefault(replace_run(run, seed=0), []).append(made[run])
    if not series:
        return [NOTHING]
    lines = head("task", "learning rate", "begins with", "kB per step", "measure %", "seeds")
    for task, (title, section) in SHORT.items():
        mine = [each for each in series if each.task == task]
        for run in sorted(mine, key=lambda run: run.rate):
            values = [100 * section.value(each["points"]) for each in series[run]]
            error = f" ± {stdev(values) / len(values) ** 0.5:.1f}" if len(values) > 1 else ""
            lines.append(
                row(
                    f"{title}, {run.steps} steps",
                    rate(run.rate),
                    run.method.removeprefix("adam(0.01), ")
                    .replace("adam(0.01)", "1%")
                    .replace("dense", "100%: dense AdamW"),
                    f"{mean(each['bytes_per_step'] for each in series[run]) / 1000:.1f}",
                    f"{mean(values):.1f}{error}",
                    str(len(values)),
                )
            )
    return lines


def table(rows: Sequence[Row], made: Mapping[Run, Record]) -> list[str]:
    """Return a table of Markdown; without results, a line that says so."""
    lines = [
        _line(each.name, found)
        for each in rows
        if (found := means(made, each.method, task=each.task, ranks=each.ranks, steps=each.steps))
    ]
    if not lines:
        return [NOTHING]
    titles = ("kB per step", "learning rate", "loss", "accuracy %", "seeds", "other rates: loss")
    return [*head("trained", *titles), *lines]


def _line(name: str, found: Sequence[Mean]) -> str:
    # A rate with fewer seeds is compared as well, but one seed of luck must not win.
    most = max(each.seeds for each in found)
    best = min((each for each in found if each.seeds == most), key=lambda each: each.loss)
    others = (f"{rate(each.rate)}: {each.loss:.3f}" for each in found if each is not best)
    return row(
        name,
        f"{best.bytes_per_step / 1000:.0f}",
        rate(best.rate),
        f"{best.loss:.3f}",
        f"{100 * best.accuracy:.1f}",
        str(best.seeds),
        ", ".join(others),
    )


def write(found: Mapping[str, list[str]]) -> None:
    """Put all tables into the page."""
    for name, lines in found.items():
        replace(PAGE, name, lines)
