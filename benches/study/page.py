"""What the study writes: the tables and the map, alone and in the documentation."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benches.accuracy.store import Record
from benches.accuracy.tables import head, row
from benches.compare import blocks

from . import aims, curves, methods, tables, whole
from .plan import LARGE, SECTIONS, Cell, Plan
from .reading import Curves, Outcome, outcomes
from .store import Store

PAGE = blocks.ROOT / "docs" / "study.md"
README = blocks.ROOT / "README.md"
FIGURE = "study.svg"
MAP, TABLES = "study map", "study tables"
SHOWN = "study"

LOADED = 3.0
"""Processes for each core. The four ranks of the study on two cores make it two."""


@dataclass(frozen=True)
class Findings:
    """All that is known of a plan."""

    plan: Plan
    store: Store
    cells: Mapping[Cell, Record]
    made: curves.Curves
    found: dict[Cell, Outcome]

    @classmethod
    def of(cls, plan: Plan, store: Store) -> "Findings":
        """Read a store."""
        cells, made = store.cells(plan), curves.all_curves(store, plan)
        return cls(plan, store, cells, made, outcomes(plan, cells, made))

    @property
    def missing(self) -> str:
        """What the plan still lacks, in words; empty if nothing."""
        cells = len(self.plan.cells()) - len(self.cells)
        runs = len(curves.wanted(self.plan, self.made))
        parts = [f"{cells} cells"] * bool(cells) + [f"{runs} curves"] * bool(runs)
        return " and ".join(parts)

    @property
    def note(self) -> str:
        """What to write beside figures that are not those of the whole study."""
        parts = ["short run"] * self.plan.quick
        parts += ["on a machine with other work"] * self.loaded
        parts += [f"missing: {self.missing}"] * bool(self.missing)
        return "; ".join(parts)

    @property
    def loaded(self) -> bool:
        """Whether more processes than the study's own wanted to run when cells were begun."""
        loads = [
            record["load"][0][0] > LOADED * record["machine"]["cores"]
            for record in self.cells.values()
            if "load" in record
        ]
        return any(loads)


def source(findings: Findings, path: str) -> str:
    """Return where the figures come from."""
    records = list(findings.cells.values())
    first = records[0]
    dates = sorted(each["date"][:10] for each in records)
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    processor = first["machine"].get("processor", first["machine"]["architecture"])
    versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    note = f"**{findings.note.capitalize()}.** " if findings.note else ""
    return (
        f"{note}By `make study`, {when}, {processor}, {first['machine']['cores']} cores; "
        f"{versions}; [data]({path})."
    )


def map_lines(findings: Findings, path: str) -> list[str]:
    """Return the map as a picture and in words, and where compression loses."""
    return [
        f"![Winners over links and ranks]({FIGURE})",
        "",
        *tables.map_of(findings.found),
        "",
        source(findings, path),
        "",
        *tables.losses(findings.found),
    ]


def table_lines(findings: Findings) -> list[str]:
    """Return the aims, the marks, the times of all methods, and the whole runs."""
    parts = [["**Aims, on 25 M parameters**"]]
    parts.append(
        [
            *tables.aims(aims.rates(findings.found)),
            *tables.aims(aims.near(findings.found)),
        ]
    )
    parts += _accuracies(findings)
    for section in tables.sections(findings.found):
        for ranks in findings.plan.ranks:
            if any((cell.section, cell.ranks) == (section, ranks) for cell in findings.found):
                what = "a step" if section == LARGE else "time to the accuracy of dense fp32"
                parts.append([f"**{SECTIONS[section].title}, {ranks} ranks**: {what}"])
                parts.append(tables.times(findings.found, section, ranks))
    checked = whole.table(findings.store, findings.plan, findings.cells, findings.made)
    if checked:
        parts += [["**Whole runs beside the product**"], checked]
    return [line for part in parts if part for line in ["", *part]][1:]


def _accuracies(findings: Findings) -> list[list[str]]:
    """Return the table of accuracies at the end, and of steps to the mark."""
    known = Curves(findings.plan, findings.made)
    lines = head("at the end of training", "ranks", "mark", "points", "steps to the mark")
    before = len(lines)
    for section in findings.plan.sections:
        if not SECTIONS[section].trained:
            continue
        for method in methods.compared(section):
            for ranks in findings.plan.trained_ranks:
                if curves.source(section, method, ranks) != (method, ranks):
                    continue
                final, mark = known.final(section, method, ranks), known.mark(section, ranks)
                if final is None or mark is None:
                    continue
                steps = known.steps(section, method, ranks)[1]
                lines.append(
                    row(
                        f"{SECTIONS[section].title}, {method}",
                        str(ranks),
                        f"{100 * mark:.2f}",
                        f"{100 * final:.2f}",
                        "not reached" if steps is None else f"{steps:.0f}",
                    )
                )
    return [["**Accuracies**"], lines] if len(lines) > before else []


def readme_lines(findings: Findings) -> list[str]:
    """Return the lines of the README's block."""
    found = findings.found
    won = sum(each.winner.kind != "dense" for each in found.values())
    note = f" ({findings.note})" if findings.note else ""
    text = (
        f"By `make study`{note}: compression wins {won} of {len(found)} cells and loses "
        f"{len(found) - won}; [all figures, and where each method loses](docs/study.md)."
    )
    return [f"![Winners over links and ranks](docs/{FIGURE})", "", text]


def write(findings: Findings, folder: Path) -> list[str]:
    """Write the tables and the map into a folder, and return the tables."""
    from .picture import draw

    if not findings.found:
        return []
    path = findings.store.path.name
    lines = [*map_lines(findings, path), "", *table_lines(findings), ""]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.md").write_text("\n".join(lines), "utf-8")
    draw(findings.found, folder / FIGURE, findings.note)
    return lines


def publish(findings: Findings) -> None:
    """Write the blocks of the page and of the README, and the page's figure."""
    from .picture import draw

    path = findings.store.path.resolve().relative_to(blocks.ROOT).as_posix()
    blocks.replace(PAGE, MAP, map_lines(findings, f"../{path}"))
    blocks.replace(PAGE, TABLES, table_lines(findings))
    blocks.replace(README, SHOWN, readme_lines(findings))
    draw(findings.found, PAGE.with_name(FIGURE), findings.note)
