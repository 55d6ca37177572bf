"""How the ranks of a new generation compare their states, and agree on one to continue from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from gradwire.torch.diloco.replica import Position
from gradwire.torch.errors import MembershipError


@dataclass(frozen=True, slots=True)
class RankReport:
    """The report of one rank on its state.

    `bits` is a checksum of the shared parameters and the outer momentum; for a rank that is in no
    generation yet, it includes the averages to be applied. `steps` counts the encodes of each
    parameter, which select the random numbers that ranks draw from a common seed.
    """

    held: int  # the generation in which it had the shared parameters last; 0 if it has joined none
    size: int  # ranks in that generation, or 0
    valid: bool  # what it has for them may be taken, and was not received in part
    restored: bool  # they are those of a checkpoint
    position: Position
    settled: int  # exchanges below it were settled when the generation began: they count
    arrived: Mapping[int, bool]  # exchanges that have arrived: whether their averages are finite
    bits: int
    counted: Mapping[int, int] = field(default_factory=dict)  # generation: exchanges below counted
    steps: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Self:
        """Read a report from JSON; raise a MembershipError for anything else."""
        try:
            arrived = {int(number): fine for number, fine in fields["arrived"].items()}
            counted = {int(number): below for number, below in fields["counted"].items()}
            return cls(**{**fields, "arrived": arrived, "counted": counted})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise MembershipError(
                "a rank sent what this one cannot read: do all have the same version of gradwire? "
                f"({type(error).__name__}: {error})"
            ) from error


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """The state with which all ranks of a generation start."""

    source: int  # the rank whose shared parameters and position count
    keep: frozenset[int]  # ranks that have the same once they have applied what has arrived
    position: Position  # of all ranks afterwards
    finite: Mapping[int, bool]  # exchanges to be applied: whether their averages are finite
    counted: Mapping[int, int]  # as in `RankReport`


def decide(every: Sequence[RankReport], *, trained: bool = False) -> RecoveryPlan:
    """Return the plan that follows from the reports of all ranks, equal on every rank.

    `trained` tells that training has begun: a MembershipError if no rank has its parameters.
    """
    valid = [rank for rank, report in enumerate(every) if report.valid]
    begun = any(every[rank].held or every[rank].restored for rank in valid)
    if not valid or (trained and not begun):
        raise MembershipError("the ranks that had the shared parameters are gone: restart")
    held = max(every[rank].held for rank in valid)
    old = [rank for rank in valid if every[rank].held == held]
    if held == 0:
        return _first_plan(every, old)
    applied = max(every[rank].position["applied"] for rank in old)
    source = next(rank for rank in old if every[rank].position["applied"] == applied)
    first = every[source]
    keep = frozenset(rank for rank in old if _can_reach(every[rank], first))
    ready = max(applied, first.settled)
    if len(old) == first.size:  # nobody is lost, so that nobody could disagree later
        while all(ready in every[rank].arrived for rank in keep):
            ready += 1
    position = {**first.position, "sent": ready}
    finite = {number: first.arrived[number] for number in range(applied, ready)}
    return RecoveryPlan(source, keep, position, finite, {**first.counted, held: ready})


def _first_plan(every: Sequence[RankReport], valid: Sequence[int]) -> RecoveryPlan:
    """Return the plan for ranks that have not trained together: the furthest checkpoint."""

    def progress(rank: int) -> tuple[bool, int, int]:
        report = every[rank]
        return report.restored, report.position["applied"], report.position["inner_step"]

    source = max(valid, key=progress)  # the first of several
    first = every[source]
    keep = {source}
    if first.restored:
        same = first.position, first.bits
        keep |= {rank for rank in valid if (every[rank].position, every[rank].bits) == same}
    return RecoveryPlan(source, frozenset(keep), first.position, first.arrived, first.counted)


def _can_reach(report: RankReport, first: RankReport) -> bool:
    """Return whether a rank can reach the shared parameters of the first one by itself."""
    mine, theirs = report.position["applied"], first.position["applied"]
    if mine == theirs:
        return report.bits == first.bits
    return all(number in report.arrived for number in range(mine, theirs))
