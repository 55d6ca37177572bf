"""What the study writes: the tables and the map, alone and in the documentation."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benches.accuracy.store import Record
from benches.accuracy.tables import head, row
from benches.compare import blocks

from . import aims, curves, methods, tables, whole
from .plan import LARGE, SECTIONS, Cell, Plan, quick
from .reading import Curves, Outcome, outcomes, reached
from .store import Store, is_former

PAGE = blocks.ROOT / "docs" / "study.md"
README = blocks.ROOT / "README.md"
FIGURE = "study.svg"
MAP, TABLES = "study map", "study tables"
SHOWN = "study"

NOTHING = "No run of `make study` is recorded yet."
"""What stands in the blocks before anything was published."""

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
    def made_before(self) -> list[Record]:
        """The curves that are of `make accuracy`."""
        taken = {
            run
            for each in curves.narrowed(self.plan, self.made)
            for run in self.made
            if run == each.run(run.learning_rate, run.seed)
        }
        own = self.store.curves()
        return [self.made[run] for run in taken if run not in own]

    @property
    def note(self) -> str:
        """What to write beside figures that are not those of the whole study."""
        parts = ["short run"] * self.plan.quick
        parts += ["on a machine with other work"] * self.loaded
        machines = {_machine(each["machine"]) for each in self.cells.values()}
        parts += ["times of several machines"] * (len(machines) > 1)
        former = sum(map(is_former, self.cells.values()))
        parts += [f"auto by an earlier procedure in {former} cells"] * bool(former)
        parts += [f"missing: {self.missing}"] * bool(self.missing)
        return "; ".join(parts)

    @property
    def loaded(self) -> bool:
        """Whether more processes than the study's own wanted to run when something was begun."""
        records = [*self.cells.values(), *self.store.wholes().values()]
        loads = [
            record["load"][0][0] > LOADED * record["machine"]["cores"]
            for record in records
            if "load" in record
        ]
        return any(loads)


def source(findings: Findings, path: str) -> list[str]:
    """Return what is shown, and where the figures come from: every machine and all versions."""
    records = [*findings.cells.values(), *findings.store.wholes().values()]
    dates = sorted(each["date"][:10] for each in records)
    when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    note = f"**{findings.note.capitalize()}.** " if findings.note else ""
    own, theirs = findings.store.curves().values(), findings.made_before
    where = _distinct(_machine(each["machine"]) for each in records)
    with_ = _distinct(_versions(each["versions"]) for each in [*records, *own])
    made = (
        f"By `make study`, {when}; the first {len(findings.store.records)} records of "
        f"[the data]({path}). Times: {where}. Versions: {with_}."
    )
    lines = [
        f"{note}{scope(findings)}",
        "",
        made,
    ]
    if theirs:
        before = _distinct(_versions(each["key"]["versions"]) for each in theirs)
        lines[-1] += f" {len(theirs)} curves are of `make accuracy`, with {before}."
    return lines


def scope(findings: Findings) -> str:
    """Return which links, ranks, seeds and turns are shown."""
    found, plan = findings.found, findings.plan
    links = sorted({cell.link for cell in found}, key=lambda each: each or float("inf"))
    ranks = sorted({cell.ranks for cell in found})
    text = (
        f"Links: {_listed([aims.link_name(each) for each in links])}. "
        f"Processes: {_listed(list(map(str, ranks)))}. At most {plan.turns} turns of each method."
    )
    if any(SECTIONS[cell.section].trained for cell in found):
        trained = _listed(list(map(str, plan.trained_ranks)))
        seeds = f"{plan.seeds} seeds" if plan.seeds > 1 else "one seed"
        text += f" Curves: {seeds}, {trained} ranks."
    return text


def _listed(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else parts[0]


def _distinct(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))


def _machine(found: Mapping[str, Any]) -> str:
    processor = found.get("processor", found["architecture"])
    level = f", SIMD level {found['simd']}" if "simd" in found else ""
    return f"{processor}, {found['cores']} cores{level}"


def _versions(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())


def map_lines(findings: Findings, path: str) -> list[str]:
    """Return the map as a picture and in words, and where compression loses."""
    return [
        f"![Winners over links and ranks]({FIGURE})",
        "",
        *tables.map_of(findings.found),
        *tables.marks(findings.found),
        "",
        *source(findings, path),
        "",
        *tables.losses(findings.found),
    ]


def table_lines(findings: Findings) -> list[str]:
    """Return the aims, the marks, the times of all methods, and the whole runs."""
    parts: list[list[str]] = []
    aimed = [*aims.rates(findings.found), *aims.near(findings.found)]
    if aimed:
        parts += [["**Aims, on 25 M parameters**"], tables.aims(aimed)]
    checked = whole.table(findings.store, findings.plan, findings.cells, findings.made)
    if checked:
        parts += [["**Whole runs beside the product**"], checked]
    parts += _accuracies(findings)
    decided = tables.decisions(findings.found)
    if decided:
        parts += [["**What `auto` decided**"], decided]
    for section in tables.sections(findings.found):
        for ranks in findings.plan.ranks:
            if any((cell.section, cell.ranks) == (section, ranks) for cell in findings.found):
                what = "a step" if section == LARGE else "time to the accuracy of dense fp32"
                parts.append([f"**{SECTIONS[section].title}, {ranks} ranks**: {what}"])
                parts.append(tables.times(findings.found, section, ranks))
    return [line for part in parts if part for line in ["", *part]][1:]


def _accuracies(findings: Findings) -> list[list[str]]:
    """Return the table of accuracies at the end, and of steps to the mark."""
    known = Curves(findings.plan, findings.made)
    lines = head(
        "at the end of training",
        "ranks",
        "mark",
        "points",
        "steps to the mark",
        "learning rates (seeds)",
    )
    before = len(lines)
    for section in findings.plan.sections:
        if not SECTIONS[section].trained:
            continue
        for method in methods.compared(section):
            for ranks in findings.plan.trained_ranks:
                mark = known.mark(section, ranks)
                if method == methods.AUTO:
                    like = methods.AUTO_LIKE[SECTIONS[section].family]
                    name, curve = f"auto, where it is {like}", known.unchanged(section, like, ranks)
                elif curves.source(section, method, ranks) == (method, ranks):
                    like, name, curve = "", method, known.curve(section, method, ranks)
                else:
                    continue
                if not curve or mark is None:
                    continue
                steps = reached(curve, mark)
                unchanged = like and known.unchanged_rate(section, like, ranks)
                lines.append(
                    row(
                        f"{SECTIONS[section].title}, {name}",
                        str(ranks),
                        f"{100 * mark:.2f}",
                        f"{100 * curve[-1][1]:.2f}",
                        "not reached" if steps is None else f"{steps:.0f}",
                        unchanged or _rates(known, section, method, ranks),
                    )
                )
    return [["**Accuracies**"], lines] if len(lines) > before else []


def _rates(known: Curves, section: str, method: str, ranks: int) -> str:
    """Return the learning rates that were tried; bold is the one whose curve is taken."""
    tried, chosen = known.tried(section, method, ranks), known.rate(section, method, ranks)
    shown = [f"{rate:g} ({count})" for rate, count in tried.items()]
    shown = [
        f"**{text}**" if rate == chosen else text for rate, text in zip(tried, shown, strict=True)
    ]
    end = chosen in (min(tried), max(tried))
    return ", ".join(shown) + (", an end" if end else "")


def readme_lines(findings: Findings) -> list[str]:
    """Return the lines of the README's block."""
    found = findings.found
    trained = [name for name in tables.sections(found) if SECTIONS[name].trained]
    parts = ["the step rate of 25 M parameters"] * any(cell.section == LARGE for cell in found)
    if trained:
        titles = _listed([SECTIONS[name].title for name in trained])
        parts.append(f"the time to the accuracy of dense float32 on {titles}")
    won, lost, noise = tables.counts(found)
    note = f" ({findings.note})" if findings.note else ""
    text = (
        f"By `make study`{note}: of {len(found)} cells, compression wins {won}, dense training "
        f"{lost}, and {noise} are within the noise; [all figures](docs/study.md)."
    )
    return [
        f"The fastest method of each cell, by {' and by '.join(parts)}. {scope(findings)}",
        "",
        f"![Winners over links and ranks](docs/{FIGURE})",
        "",
        text,
    ]


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
    """Write the blocks of the page and of the README, and the page's figure.

    Raises
    ------
    RuntimeError
        If there is nothing to show.
    """
    from .picture import draw

    if not findings.found:
        raise RuntimeError(f"nothing to publish: no cell of {findings.store.path} is complete")
    path = findings.store.path.resolve().relative_to(blocks.ROOT).as_posix()
    blocks.replace(PAGE, MAP, map_lines(findings, f"../{path}"))
    blocks.replace(PAGE, TABLES, table_lines(findings))
    blocks.replace(README, SHOWN, readme_lines(findings))
    draw(findings.found, PAGE.with_name(FIGURE), findings.note)


def shown(short: bool, store: Store) -> Plan:
    """Return the plan that is published: all of it, and what else is there of models.

    What a command was asked to make does not count, so that the page depends on the data alone.
    """
    plan = quick() if short else Plan()
    there = {each["key"].get("section") for each in store.of("steps")}
    more = [name for name in SECTIONS if name in there and name not in plan.sections]
    return replace(plan, sections=(*plan.sections, *more))
