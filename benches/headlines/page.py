"""The blocks of docs/headlines.md, made of what was measured."""

from collections.abc import Mapping

from benches import circumstances
from benches.accuracy.store import Record
from benches.accuracy.tables import row
from benches.compare.blocks import ROOT, replace

from . import details, gains
from .claims import CLAIMS, Claim
from .counting import rate
from .details import Made
from .plan import trainings
from .results import Results
from .trainings import CODECS, Training

PAGE = ROOT / "docs" / "headlines.md"
NOTHING = "not measured yet"


def blocks(kept: Results, *, quick: bool = False) -> dict[str, list[str]]:
    """Return the lines of every block, by its name."""
    made = kept.trained()
    by_headline = {
        name: {each: made[each] for each in trainings(name, quick=quick) if each in made}
        for name in ("scalecom", "adacomp")
    }
    timed = {name: kept.measured(name, quick=quick) for name in ("accordion", "sidco", "dryden")}
    found = {"headlines": summary(by_headline, timed)}
    for name, trained in (("scalecom", details.scalecom), ("adacomp", details.adacomp)):
        runs = by_headline[name]
        found[name] = [*trained(runs), *_made(runs), *_left(name, runs, quick=quick)]
    tables = {"accordion": details.accordion, "sidco": details.sidco, "dryden": details.dryden}
    for name, table in tables.items():
        record = timed[name]
        found[name] = (
            [NOTHING] if record is None else [*table(record["rows"]), "", gains.said(record)]
        )
    return found


def _made(made: Made) -> list[str]:
    """Return where, when and with what runs were made."""
    return ["", circumstances.listed(made.values())] if made else []


def _left(name: str, made: Made, *, quick: bool) -> list[str]:
    """Return the runs that are planned, but not made."""
    left = [
        f"{each.setting}, {each.method}, {each.ranks} learners, seed {each.seed}"
        for each in trainings(name, quick=quick)
        if each not in made
    ]
    return ["", f"Planned, and not made yet: {'; '.join(left)}."] if left else []


def write(found: Mapping[str, list[str]]) -> None:
    """Put all blocks into the page."""
    for name, lines in found.items():
        replace(PAGE, name, lines)


def summary(made: Mapping[str, Made], timed: Mapping[str, Record | None]) -> list[str]:
    """Return the table of all headlines."""
    lines = [row("paper", "claims", "of what", "measured here"), row(*["---"] * 4)]
    for claim in CLAIMS:
        if claim.name in made:
            found = measured_trainings(claim, made[claim.name])
        else:
            record = timed[claim.name]
            found = NOTHING if record is None else gains.words(record)
        where = f"{claim.quantity} ({claim.source})"
        lines.append(row(claim.paper, claim.figure, where, found))
    return lines


def measured_trainings(claim: Claim, made: Mapping[Training, Record]) -> str:
    """Return what was measured by training, in a few words."""
    if not made:
        return NOTHING
    if claim.name == "adacomp":
        return _adacomp(made)
    parts = []
    for setting, ranks in details.places(made):
        best = details.reached(made, setting, ranks)
        method = best or details.nearest(made, setting, ranks)
        rate_ = details.chunk(CODECS[method])
        lost = _points(details.behind(made, setting, method, ranks))
        missed = "" if best else ", which is not equal"
        parts.append(f"{rate_} × with {ranks} learners, {lost}{missed} ({setting}, {method})")
    return "; ".join(parts) or NOTHING


def _points(lost: float) -> str:
    """Return a difference of accuracy in words."""
    return f"{abs(lost):.2f} points {'behind' if lost >= 0 else 'ahead of'} dense"


def _adacomp(made: Mapping[Training, Record]) -> str:
    parts = []
    for setting, method in details.compressed(made):
        records = details.ends(made, setting, method)
        rates = ", ".join(
            f"{name} {rate(sent)[0]:.0f} ×" for name, sent in details.kinds(records).items()
        )
        lost = details.behind(made, setting, method)
        parts.append(f"{setting}, {method}: {rates}, {_points(lost)}")
    return "; ".join(parts)
