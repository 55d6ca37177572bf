"""What the study writes: the map of winners as a picture and a table, alone and in the pages."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.patches import Patch, Rectangle

from benches.harness import pages, results
from benches.harness.results import Record, Store
from benches.harness.theme import panels
from gradwire.cli.plan import format_rate

from .plan import BF16, FP32, LARGE, SECTIONS, TORCH_POWER, Cell, Plan
from .reading import Curves, Outcome, Verdict, every, outcomes, timed_cells

PAGE, README = pages.ROOT / "docs" / "study.md", pages.ROOT / "README.md"
FIGURE = "study.svg"
LOADED = 3.0
"""Processes for each core. The four ranks of the study on two cores make it two."""

NOISE: dict[str, Any] = {
    "facecolor": "#f6f6f6", "edgecolor": "#bbbbbb", "hatch": "////", "linewidth": 0.0,
}  # fmt: skip
# Tints of Okabe and Ito's palette; the name stands in every cell as well.
COLORS = {
    FP32: "#c9c9c9",
    BF16: "#e0dccb",
    TORCH_POWER: "#f3b58a",
    "adam(0.01)": "#8cc3ea",
    "adam(0.002), warm-up": "#b5dcf4",
    "adam_onebit()": "#8fd4bd",
}


@dataclass(frozen=True)
class Findings:
    plan: Plan
    store: Store
    cells: Mapping[Cell, Record]
    made: Curves
    found: dict[Cell, Outcome]

    @classmethod
    def of(cls, plan: Plan, store: Store) -> "Findings":
        cells, made = timed_cells(plan, store), every(store)
        return cls(plan, store, cells, made, outcomes(plan, cells, made))

    @property
    def note(self) -> str:
        loads = [
            each["load"][0][0] > LOADED * each["machine"]["cores"] for each in self.cells.values()
        ]
        cells = len(self.plan.cells()) - len(self.cells)
        parts = ["on a machine that was also doing other work"] * any(loads)
        parts += [f"missing: {cells} cells"] * bool(cells)
        return "; ".join(parts)

    def of_cells(self, name: str) -> list[Any]:
        """Return what cells have of a name, in order: sections, links or ranks."""
        found = {getattr(cell, name) for cell in self.found}
        if name == "section":
            return sorted(found, key=list(SECTIONS).index)
        return sorted(found, key=lambda value: (value is None, value))


def link_name(link: int | None) -> str:
    return "unshaped" if link is None else format_rate(link)


def short(method: str) -> str:
    return method.removesuffix(", warm-up").replace(TORCH_POWER, "torch PowerSGD")


def factor(gain: float) -> str:
    if gain == 0:
        return "not reached"
    return f"{gain:.0f} x" if gain >= 9.95 else f"{gain:.1f} x" if gain >= 1.1 else f"{gain:.2f} x"


def winners(findings: Findings) -> str:
    """Return the map: the winner of every cell, and how many times as fast as the best dense."""
    links, rows = findings.of_cells("link"), []
    for section in findings.of_cells("section"):
        for ranks in findings.of_cells("ranks"):
            cells = [findings.found.get(Cell(section, ranks, x)) for x in links]
            shown = ["" if each is None else in_words(each) for each in cells]
            rows.append([SECTIONS[section].title, ranks, *shown])
    return pages.table(["", "ranks", *map(link_name, links)], rows)


def in_words(outcome: Outcome) -> str:
    """Return the winner of a cell; where nothing that compresses wins, the best of that too."""
    best, winner = outcome.compressed, outcome.winner
    shown = f"{short(best.method)} {factor(outcome.gain(best))}"
    if winner is best:
        return shown
    standing = f"*{Verdict.NOISE.value}*" if winner is None else f"**{winner.method}**"
    return f"{standing} ({shown})"


def scope(findings: Findings) -> str:
    plan, links = findings.plan, _listed(map(link_name, findings.of_cells("link")))
    ranks = _listed(map(str, findings.of_cells("ranks")))
    text = f"Each method is timed up to {plan.turns} times on each link ({links}) with {ranks} "
    text += "processes."
    if set(findings.of_cells("section")) - {LARGE}:
        seeds = f"{plan.seeds} seeds" if plan.seeds > 1 else "one seed"
        trained = _listed(map(str, plan.trained_ranks))
        text += f" Training curves are from {seeds}, with {trained} ranks."
    return text


def _listed(texts: Any) -> str:
    *most, last = texts
    return f"{', '.join(most)} and {last}" if most else str(last)


def summary(findings: Findings, link: str) -> str:
    counts = Counter(each.verdict for each in findings.found.values())
    cases, won, noise = len(findings.found), counts[Verdict.FASTER], counts[Verdict.NOISE]
    note = f" ({findings.note})" if findings.note else ""
    return (
        f"From `make study`{note}: compression wins in {won} of {cases} cases, uncompressed "
        f"training in {cases - won - noise}, and {noise} are within the noise; {link}."
    )


def source(findings: Findings) -> str:
    records = findings.cells.values()
    dates = sorted({each["date"][:10] for each in records})
    where = "; ".join(dict.fromkeys(results.where(each["machine"]) for each in records))
    made = "; ".join(dict.fromkeys(results.listed(each["versions"]) for each in records))
    return f"Times measured on {_listed(dates)}: {where}. Versions: {made}."


def readme(findings: Findings) -> str:
    trained = [SECTIONS[name].title for name in findings.of_cells("section") if name != LARGE]
    parts = ["by steps per second for the 25 M-parameter model"] * (
        LARGE in findings.of_cells("section")
    )
    if trained:
        parts.append(f"by time to the accuracy of uncompressed float32 for {_listed(trained)}")
    return (
        f"Each cell names the fastest method: {', and '.join(parts)}. {scope(findings)}\n\n"
        f"![Fastest method by link and number of ranks](docs/{FIGURE})\n\n"
        f"{summary(findings, '[all figures](docs/study.md)')}"
    )


def page(findings: Findings, path: str) -> str:
    parts = [
        f"![Fastest method by link and number of ranks]({FIGURE})",
        winners(findings),
        scope(findings),
        summary(findings, f"[the data]({path})"),
        source(findings),
    ]
    return "\n\n".join(parts)


def write(findings: Findings, folder: Path) -> str:
    """Write the tables and the map into a folder, and return the tables."""
    if not findings.found:
        return ""
    text = page(findings, findings.store.path.name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.md").write_text(f"{text}\n", "utf-8")
    draw(findings, folder / FIGURE)
    return text


def publish(findings: Findings) -> None:
    """Write the blocks of the page and of the README, and the page's figure."""
    path = results.relative(findings.store.path)
    pages.replace(PAGE, "study map", page(findings, f"../{path}"))
    pages.replace(README, "study", readme(findings))
    draw(findings, PAGE.with_name(FIGURE))


def draw(findings: Findings, path: Path) -> None:
    """Save the map: a panel for each model, a cell for each link and number of ranks."""
    named, links, ranks = (findings.of_cells(name) for name in ("section", "link", "ranks"))
    height = 0.46 * len(named) * (len(ranks) + 0.9) + 0.7
    with panels(path, len(named), 1, (9.0, height)) as (figure, found):
        for axes, section in zip(found.flat, named, strict=True):
            axes.set_xlim(0, len(links))
            axes.set_ylim(0, len(ranks))
            axes.set_xticks([at + 0.5 for at in range(len(links))], map(link_name, links))
            axes.set_yticks([at + 0.5 for at in range(len(ranks))], [f"{n} ranks" for n in ranks])
            axes.tick_params(length=0, labelsize=8)
            axes.set_title(SECTIONS[section].title, fontweight="bold", fontsize=10, loc="left")
            axes.spines[:].set_visible(False)
            for column, link in enumerate(links):
                for line, count in enumerate(ranks):
                    if outcome := findings.found.get(Cell(section, count, link)):
                        _cell(axes, column, line, outcome)
        won = {each.winner and each.winner.method for each in findings.found.values()}
        handles = [Patch(color=COLORS[name], label=name) for name in COLORS if name in won]
        handles += [Patch(label=Verdict.NOISE.value, **NOISE)] * (None in won)
        where: dict[str, Any] = {"loc": "outside upper center", "title": findings.note or None}
        figure.legend(handles=handles, ncols=4, frameon=False, **where)


def _cell(axes: Any, column: int, line: int, outcome: Outcome) -> None:
    winner, best = outcome.winner, outcome.compressed
    filled = NOISE if winner is None else {"color": COLORS[winner.method]}
    axes.add_patch(Rectangle((column + 0.01, line + 0.03), 0.98, 0.94, **filled))
    name, gain = short(best.method), factor(outcome.gain(best))
    standing = Verdict.NOISE.value if winner is None else winner.method
    text = f"{name}\n{gain}" if winner is best else f"{standing}\n({name} {gain})"
    axes.text(column + 0.5, line + 0.5, text, ha="center", va="center", fontsize=7,
              color="#000000", linespacing=1.05)  # fmt: skip
