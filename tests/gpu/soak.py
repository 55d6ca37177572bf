"""Thousands of steps by kernels beside the core, while streams and collectives are busy.

    python3 -m tests.gpu.soak [--minutes 5] [--out FILE]

What has no fixed order on a device, such as blocks that wait for each other, shows once in many
times. Every frame is compared with the core's. A scenario that hangs ends the process with the
stacks of its threads, and the file says which one it was.
"""

import argparse
import faulthandler
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import gradwire
import gradwire.torch
from benches.compare.contestants import group, student
from benches.gpu.measure import facts
from gradwire.torch.backends import cuda

CODECS = {
    "sidco": lambda: gradwire.sidco(ratio=0.01),
    "topk": lambda: gradwire.topk(ratio=0.001),
}
DRAWN = 4  # gradients that steps take in turn


@dataclass(frozen=True)
class Setup:
    """Where, how large tensors are, how long, and how often at least.

    Attributes
    ----------
    device : str
        ``"cuda"``; the test of this file takes ``"cpu"`` with emulated kernels.
    numel, large : int
        Two chunks and one entry more; and as many as a large model's layer has.
    seconds : float
        Of each scenario.
    least, least_large : int
        Steps of each codec even so.
    """

    device: str
    numel: int = 2 * 65536 + 1
    large: int = 100_000_000
    seconds: float = 45.0
    least: int = 2000
    least_large: int = 3


class Steps:
    """One codec's steps on the device and in the core, in turn."""

    def __init__(self, setup: Setup, name: str, numel: int) -> None:
        self.setup, self.codec = setup, CODECS[name]()
        self.gradients = [torch.from_numpy(student(numel, i)) for i in range(DRAWN)]
        self.there = cuda.init_state(self.codec, numel, name, 0)
        self.here = self.codec.init_state(numel, name=name)
        self.done = 0

    def step(self) -> None:
        """Encode on either side, and compare."""
        x = self.gradients[self.done % DRAWN] * (1 + self.done % 7)
        frame = bytes(cuda.encode(self.codec, x.to(self.setup.device), self.there, None))
        if frame != bytes(self.codec.encode(x.numpy(), self.here)):
            raise AssertionError(f"step {self.done} of {self.codec!r}")
        self.done += 1

    def run(self, until: float, least: int) -> int:
        """Go on until a moment, but for so many steps at least."""
        while self.done < least or time.monotonic() < until:
            self.step()
        return self.done


def alone(setup: Setup) -> dict[str, int]:
    """One codec after another."""
    share = setup.seconds / len(CODECS)
    return {
        name: Steps(setup, name, setup.numel).run(time.monotonic() + share, setup.least)
        for name in CODECS
    }


def large(setup: Setup) -> dict[str, int]:
    """The same with long tensors: every block of the device takes part."""
    share = setup.seconds / len(CODECS)
    return {
        name: Steps(setup, name, setup.large).run(time.monotonic() + share, setup.least_large)
        for name in CODECS
    }


def two_streams(setup: Setup) -> dict[str, int]:
    """Two threads encode on streams of their own at once."""
    names = ("topk", "sidco")
    until = time.monotonic() + setup.seconds
    done: dict[str, int] = {}
    failed: list[BaseException] = []

    def work(name: str) -> None:
        try:
            with stream(setup):
                done[name] = Steps(setup, name, setup.numel).run(until, setup.least // 2)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
        if setup.device == "cpu":  # the emulated machine has one host
            thread.join()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return done


def beside_collectives(setup: Setup) -> dict[str, int]:
    """Steps while another stream reduces a tensor again and again, and multiplies matrices."""
    members = group(setup.device)
    summed = torch.ones(setup.numel, device=setup.device)
    side = torch.rand(512, 512, device=setup.device)
    steps, reduced = Steps(setup, "sidco", setup.numel), 0
    until = time.monotonic() + setup.seconds
    other = None if setup.device == "cpu" else torch.cuda.Stream()
    while steps.done < setup.least // 2 or time.monotonic() < until:
        with stream(setup, other):
            works = [dist.all_reduce(summed, group=members, async_op=True) for _ in range(4)]
            for _ in range(4):
                side = (side @ side).div_(side.norm())
        steps.step()
        for work in works:
            assert work is not None
            work.wait()
        reduced += len(works)
    if not bool((summed == 1).all()):
        raise AssertionError("a sum over one rank has changed")
    return {"sidco": steps.done, "reduced": reduced}


def stream(setup: Setup, given: Any = None) -> AbstractContextManager[Any]:
    """Return a context in which a stream of its own is current, where there are any."""
    if setup.device == "cpu":
        return nullcontext()
    return torch.cuda.stream(given or torch.cuda.Stream())


SCENARIOS: dict[str, Callable[[Setup], dict[str, int]]] = {
    "alone": alone,
    "two streams": two_streams,
    "beside collectives": beside_collectives,
    "large": large,
}


def soak(setup: Setup, out: Path) -> dict[str, Any]:
    """Run all scenarios; write what came of each as soon as it is known."""
    record = {**facts(setup.device), "scenarios": {}}
    for name, scenario in SCENARIOS.items():
        record["scenarios"][name] = {"outcome": "did not end"}
        _write(record, out)
        faulthandler.dump_traceback_later(120 + 4 * setup.seconds, exit=True)
        began = time.monotonic()
        try:
            result: dict[str, Any] = {"outcome": "passed", "steps": scenario(setup)}
        except Exception as error:
            result = {"outcome": f"{type(error).__name__}: {error}"}
        finally:
            faulthandler.cancel_dump_traceback_later()
        result["seconds"] = round(time.monotonic() - began, 1)
        print(f"soak: {name}: {result}", flush=True)
        record["scenarios"][name] = result
        _write(record, out)
    return record


def _write(record: dict[str, Any], out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n")


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--out", type=Path, default=Path("results/soak.json"))
    chosen = parser.parse_args(given)
    used = gradwire.torch.backend("cuda")
    if not torch.cuda.is_available() or used.name != "cuda":
        print(f"soak: nothing was run: {used.reason}", file=sys.stderr)
        return 2
    setup = Setup("cuda", seconds=60 * chosen.minutes / len(SCENARIOS))
    record = soak(setup, chosen.out)
    return 0 if all(each["outcome"] == "passed" for each in record["scenarios"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
