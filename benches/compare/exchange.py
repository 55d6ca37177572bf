"""Whole exchanges end to end: two processes, DDP over Gloo, over links of known speed.

The model has 25 layers of 1000 x 1000, and its backward pass only hands over a gradient: the time
measured is the copy into DDP's bucket and the exchange. All methods use one bucket of 100 MB, so
nothing overlaps: with two buckets, PowerSGD's chained collectives run in a different order on every
rank, and on Gloo the run hangs or aborts.

If the system allows it, the ranks run in network namespaces joined by a shaped link, as in the
demo; otherwise they use the loopback device.
"""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.table import Table

from gradwire.cli.training.link import Link, format_rate, open_link

from .interleave import Tick
from .pages import span
from .rounds import Spread

RANKS = 2
# Bits per second; None is unlimited.
RATES = (1_000_000_000, 10_000_000_000, None)
UNSHAPED = 200_000_000_000
ROOT = Path(__file__).resolve().parents[2]


class Rank:
    """A rank's process: one line of JSON in, one out."""

    def __init__(
        self,
        link: Link,
        number: int,
        folder: str,
        module: str = f"{__package__}.exchange_rank",
        *,
        ranks: int = RANKS,
        end: int | None = None,
        **options: Any,
    ) -> None:
        self.number = number
        setup = {"rank": number, "ranks": ranks, "folder": folder, **options}
        environment = os.environ | {
            "GLOO_SOCKET_IFNAME": link.interface,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        self.process = subprocess.Popen(
            [
                *link.command_prefix(number if end is None else end),
                sys.executable,
                "-m",
                module,
                json.dumps(setup),
            ],
            env=environment,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, **command: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise self._gone() from None

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise self._gone()
        return dict(json.loads(line))

    def _gone(self) -> RuntimeError:
        return RuntimeError(
            f"rank {self.number} ended with {self.process.wait()}; its standard error says why"
        )

    def close(self) -> None:
        """Kill the process; it needs no clean-up."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # what it did not read any more
                    pipe.close()


def measure(rounds: int, tick: Tick) -> dict[str, Any]:
    """Return the time of a step of every method, over every link."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gradwire-bench-"))
        tick("opening a link")
        link, why_not = open_link(RANKS)
        stack.enter_context(link)
        if why_not is None:
            link.set_rate(UNSHAPED)
        ranks = []
        for number in range(RANKS):
            ranks.append(Rank(link, number, folder))
            stack.callback(ranks[-1].close)
        facts = together(ranks)[0]  # each says so when it has joined the others
        outcomes = []
        for rate in RATES if why_not is None else (None,):
            if why_not is None:
                link.set_rate(rate or UNSHAPED)
            rows = _over(ranks, facts["methods"], rounds, rate, tick)
            outcomes.append({"bits_per_second": rate, "rows": rows})
    shaped = "network namespaces" if why_not is None else f"the loopback device: {why_not}"
    return {"ranks": RANKS, "numel": facts["numel"], "link": shaped, "outcomes": outcomes}


def _over(
    ranks: list[Rank], methods: list[str], rounds: int, rate: int | None, tick: Tick
) -> list[dict[str, Any]]:
    """Return the row of each method, over a link of one rate."""
    seconds, _, nbytes = turns(ranks, methods, rounds, link_name(rate), tick)
    return [
        {"method": method, "seconds": seconds[method].record(), "nbytes": nbytes[method]}
        for method in methods
    ]


def turns(
    ranks: list[Rank], methods: list[str], rounds: int, title: str, tick: Tick
) -> tuple[dict[str, Spread], dict[str, Spread], dict[str, float | None]]:
    """Let all methods take turns; a step takes as long as its slowest rank.

    Returns the seconds of each method, round by round, those of processors for a rank, and the
    bytes that a rank sends.
    """
    seconds: dict[str, Spread] = {method: Spread() for method in methods}
    worked: dict[str, Spread] = {method: Spread() for method in methods}
    nbytes: dict[str, float | None] = {}
    for turn in range(-1, rounds):
        # Another order each time: what one leaves behind in queues and windows meets all alike.
        at = turn % len(methods)
        for method in [*methods[at:], *methods[:at]]:
            tick(f"{title}, {method}")
            for rank in ranks:
                rank.tell(method=method)
            answers = together(ranks)
            if turn >= 0:
                seconds[method].values.append(max(each["seconds"] for each in answers))
                worked[method].values.append(sum(each["cpu"] for each in answers) / len(ranks))
            nbytes[method] = answers[0]["nbytes"]
    return seconds, worked, nbytes


def together(ranks: list[Rank]) -> list[dict[str, Any]]:
    """Return the answers of all ranks, in their order.

    Raises
    ------
    RuntimeError
        As soon as one of them has ended, whichever it is: the others would wait for it in a
        collective until that times out.
    """
    answers: dict[int, dict[str, Any]] = {}
    with selectors.DefaultSelector() as waiting:
        for number, rank in enumerate(ranks):
            assert rank.process.stdout is not None
            waiting.register(rank.process.stdout, selectors.EVENT_READ, number)
        while waiting.get_map():
            for key, _ in waiting.select():
                answers[key.data] = ranks[key.data].answer()
                waiting.unregister(key.fileobj)
    return [answers[number] for number in range(len(ranks))]


def link_name(rate: int | None) -> str:
    return "unshaped" if rate is None else format_rate(rate)


def table(measured: dict[str, Any]) -> Table:
    title = (
        f"A step of DDP end to end: {measured['numel']:,} float32, {measured['ranks']} processes, "
        f"Gloo over {measured['link']}"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("method")
    table.add_column("MB per rank", justify="right")
    for outcome in measured["outcomes"]:
        table.add_column(link_name(outcome["bits_per_second"]), justify="right")
    for row in measured["outcomes"][0]["rows"]:
        method = row["method"]
        cells = []
        for outcome in measured["outcomes"]:
            times = {each["method"]: each["seconds"]["median"] for each in outcome["rows"]}
            gain = times["none"] / times[method]
            cells.append(f"{span(times[method])} ({gain:.1f} x)")
        size = "" if row["nbytes"] is None else f"{row['nbytes'] / 1e6:.3g}"
        style = "bold" if method.startswith("gradwire") else ""
        table.add_row(method, size, *cells, style=style)
    table.caption = (
        "In parentheses: the time without compression divided by the row's. One bucket, so that "
        "nothing overlaps. `no exchange` is the rest of the step."
    )
    return table
