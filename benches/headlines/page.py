"""The blocks of docs/headlines.md, made of what was measured."""

from collections.abc import Mapping

from benches.accuracy.store import Record
from benches.accuracy.tables import row
from benches.compare.blocks import ROOT, replace
from gradwire.cli.training.link import format_rate, parse_rate

from . import allreduce_rank, details, throughput_rank
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
    found["scalecom"] = details.scalecom(by_headline["scalecom"])
    found["adacomp"] = details.adacomp(by_headline["adacomp"])
    tables = {"accordion": details.accordion, "sidco": details.sidco, "dryden": details.dryden}
    for name, table in tables.items():
        record = timed[name]
        found[name] = [NOTHING] if record is None else [*table(record["rows"]), "", said(record)]
    return found


def write(found: Mapping[str, list[str]]) -> None:
    """Put all blocks into the page."""
    for name, lines in found.items():
        replace(PAGE, name, lines)


def said(record: Record) -> str:
    """Return when and where a measurement was made."""
    machine = record["machine"]
    loads = [each["load"] for each in record["rows"] if "load" in each]
    load = f", load {min(loads):.1f} to {max(loads):.1f}" if loads else ""
    return f"{record['date'][:10]}, {machine['processor']}, {machine['cores']} cores{load}."


def summary(made: Mapping[str, Made], timed: Mapping[str, Record | None]) -> list[str]:
    """Return the table of all headlines."""
    lines = [row("paper", "claims", "of what", "measured here"), row(*["---"] * 4)]
    for claim in CLAIMS:
        if claim.name in made:
            found = measured_trainings(claim, made[claim.name])
        else:
            record = timed[claim.name]
            found = NOTHING if record is None else measured_times(claim, record)
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


def measured_times(claim: Claim, record: Record) -> str:
    """Return the best of what was timed, in a few words."""
    rows = record["rows"]
    if claim.name == "accordion":
        return "; ".join(
            f"{each['low']['bytes_per_step'] / each['scheduled']['bytes_per_step']:.1f} × fewer "
            f"bytes and {each['low']['seconds'] / each['scheduled']['seconds']:.1f} × the speed, "
            + _points(100 * (each["low"]["accuracy"] - each["scheduled"]["accuracy"])).replace(
                "dense", "the low compression"
            )
            for each in rows
        )
    if claim.name == "sidco":
        own = [each for each in rows if each["method"] == "gradwire sidco"]
        gains = {}
        for other in (throughput_rank.DENSE, *throughput_rank.PEERS, *throughput_rank.OURS):
            found = {
                (each["ratio"], each["rate"]): each["seconds"]
                for each in rows
                if each["method"] == other
            }
            gains[other] = max(
                (found[each["ratio"], each["rate"]] / each["seconds"], each["rate"]) for each in own
            )
        names = (throughput_rank.DENSE, "torch.topk", "DGC in torch")
        return "; ".join(
            f"{gains[name][0]:.1f} × over {name} ({format_rate(parse_rate(gains[name][1]))})"
            for name in names
        )
    best = max(
        (
            (found[allreduce_rank.DENSE]["seconds"] / each["seconds"], each)
            for ranks, rate_ in dict.fromkeys((each["ranks"], each["rate"]) for each in rows)
            for found in [details.by_method(rows, ranks=ranks, rate=rate_)]
            for name, each in found.items()
            if name.startswith("adaptive")
        ),
        key=lambda each: each[0],
    )
    gain, each = best
    where = f"{each['ranks']} ranks, {format_rate(parse_rate(each['rate']))}"
    return f"{gain:.1f} × ({each['method']}, {where}, {each['numel'] / 1e6:.0f} M entries)"
