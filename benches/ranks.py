"""Processes of ranks, joined by a link of known speed: the side that starts and asks them."""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benches.harness.link import Link, Loopback, open_link

UNSHAPED = 200_000_000_000
"""Bits per second that no link reaches."""
ROOT = Path(__file__).resolve().parents[1]


class Rank:
    """A rank's process: one line of JSON in, one out; see `benches.joining`."""

    def __init__(
        self,
        link: Link,
        number: int,
        folder: str,
        module: str,
        *,
        ranks: int = 2,
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


class Ranks:
    """Ranks that have joined each other, over a link that is not shaped yet.

    Attributes
    ----------
    facts : dict
        What the first rank said when it had joined the others.
    why_not : str or None
        Why the link cannot be shaped: the ranks then use the loopback device.
    """

    def __init__(self, link: Link, why_not: str | None, processes: list[Rank]) -> None:
        self._link = link
        self.why_not = why_not
        self._processes = processes
        self.facts = together(processes)[0]

    def __len__(self) -> int:
        return len(self._processes)

    def shape(self, rate: int | None) -> None:
        """Shape the link to so many bits per second; None takes the limit away.

        Nothing happens on the loopback device.
        """
        if self.why_not is None:
            self._link.set_rate(rate or UNSHAPED)

    def ask(self, **command: Any) -> list[dict[str, Any]]:
        """Have all ranks do something; return their answers."""
        for process in self._processes:
            process.tell(**command)
        return together(self._processes)


@contextlib.contextmanager
def joined(
    ranks: int,
    module: str,
    *,
    nodes: int | None = None,
    shaped: bool = False,
    loopback: bool = False,
    **options: Any,
) -> Iterator[Ranks]:
    """Start so many processes of a module, and end them with the block.

    Parameters
    ----------
    ranks : int
    module : str
        Its name; it is run as ``__main__``.
    nodes : int, optional
        Ends of the link, among which the ranks are divided; one for each rank by default.
    shaped : bool
        Without a link that can be shaped there are no processes, but a SystemExit.
    loopback : bool
        Do not even try: the loopback device is what is asked for.
    **options
        Of the module.
    """
    ends = nodes or ranks
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gradwire-bench-"))
        made: tuple[Link, str | None] = (
            (Loopback(), "not asked for") if loopback else open_link(ends)
        )
        link, why_not = made
        stack.enter_context(link)
        if shaped and why_not is not None:
            raise SystemExit(f"no shaped link: {why_not}")
        if why_not is None:
            link.set_rate(UNSHAPED)
        started = []
        for number in range(ranks):
            end = number * ends // ranks
            started.append(Rank(link, number, folder, module, ranks=ranks, end=end, **options))
            stack.callback(started[-1].close)
        yield Ranks(link, why_not, started)
