"""Measure what Accordion saves: a run at its low compression, and one with the schedule."""

from __future__ import annotations

from dataclasses import dataclass

from benches.harness.link import Link, Loopback
from benches.harness.processes import Ranks
from gradwire.codec import Codec
from gradwire.presets import topk
from gradwire.schedule import Accordion, Constant, Schedule

__all__ = ["Outcome", "measure"]

SEEDS = 3
LEARNING_RATE = 0.15
"""Of all runs, whatever their ratio."""


@dataclass(frozen=True)
class Outcome:
    """Result of one run."""

    schedule: str
    bytes_per_step: float
    loss: float
    accuracy: float
    seconds: float
    """Of all training steps together."""


def measure(
    schedule: Accordion,
    codec: Codec | None = None,
    *,
    steps: int = 1200,
    ranks: int = 2,
    seed: int = 0,
    link: Link | None = None,
    scheduled_first: bool = False,
) -> tuple[Outcome, Outcome]:
    """Train on the demo's digits at the low compression of a schedule, then with the schedule.

    Both runs have the same initial weights, data, steps and learning rate at each step.

    Parameters
    ----------
    schedule : Accordion
    codec : Codec, optional
        Codec to apply the schedule to; exact top-k by default.
    steps : int
        Training steps per run.
    ranks : int
        Number of processes.
    seed : int
        Seed of the initial weights and of the order of the data.
    link : Link, optional
        Between the ranks; the loopback device by default.
    scheduled_first : bool
        Begin with the run that has the schedule; what is returned is in the same order.

    Returns
    -------
    low, scheduled : Outcome

    Raises
    ------
    RankError
        If a process fails or stops responding.
    """
    base = topk(ratio=0.1) if codec is None else codec
    low = schedule.codec_for(base, critical=True)
    with Ranks(link or Loopback(), ranks) as processes:
        processes.versions()
        runs = ((low, Constant()), (base, schedule))
        found = [
            _outcome(processes, codec, schedule, steps, seed)
            for codec, schedule in (runs[::-1] if scheduled_first else runs)
        ]
    first, second = found[::-1] if scheduled_first else found
    return first, second


def _outcome(processes: Ranks, codec: Codec, schedule: Schedule, steps: int, seed: int) -> Outcome:
    record = processes.train(
        task="digits",
        method="",
        codec=codec.get_config(),
        schedule=schedule.get_config(),
        steps=steps,
        evaluate=True,
        seed=seed,
        learning_rate=LEARNING_RATE,
    )
    end = record["curve"][-1]
    return Outcome(
        repr(schedule),
        record["bytes_per_step"],
        end["loss"],
        end["accuracy"],
        sum(record["step_seconds"]),
    )


def main() -> None:
    """Print the table of Accordion in the documentation."""
    schedule = Accordion(0.5, 0.02, interval=1)
    print("| seed | | bytes per step | held-out loss | accuracy |\n|---|---|---|---|---|")
    for seed in range(SEEDS):
        low, scheduled = measure(schedule, seed=seed)
        print(_row(seed, "`low` throughout", low))
        fewer = low.bytes_per_step / scheduled.bytes_per_step
        print(_row(seed, f"Accordion, {fewer:.1f} times fewer bytes", scheduled))


def _row(seed: int, name: str, outcome: Outcome) -> str:
    sent = f"{outcome.bytes_per_step:,.0f}"
    return f"| {seed} | {name} | {sent} | {outcome.loss:.4f} | {100 * outcome.accuracy:.2f} % |"


if __name__ == "__main__":
    main()
