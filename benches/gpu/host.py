"""Measure the host's part of a bucket on a GPU, without one: ``python -m benches.gpu.host``.

Operators, and the collective, are replaced by nothing. What is left is Python: the time of its
thread to send a bucket and to receive it, over buckets of 1 to 300 parameters, as so much a bucket
and so much a parameter. The bucket's part of both is also given alone.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import gradwire
from gradwire.torch.backends import SlotFacts, SlotOrder, cuda
from gradwire.torch.backends.cuda import operators
from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.parameter import ParameterSlot, SizeLimit
from gradwire.torch.engine.step import BucketTask, Step
from gradwire.torch.exchange import build, wire
from gradwire.torch.exchange.all_gather import SlotLayout

COUNTS = (1, 3, 10, 30, 100, 300)
NUMEL, RANKS, FRAME = 64, 8, 60
CODEC = gradwire.topk(0.1)


class Nothing:
    """The operators of the extension, which do nothing: every encode and every decode is good."""

    def __init__(self) -> None:
        self._tables: dict[int, torch.Tensor] = {}
        self._verdicts: dict[int, torch.Tensor] = {}

    def complete_pieces(self, pieces: torch.Tensor) -> torch.Tensor:
        return pieces

    def encode_plan(self, *_: Any) -> int:
        return 0

    def encode_forget(self, number: int) -> None:
        pass

    def encode_room(self, *_: Any) -> int:
        return 64

    def encode_bucket(self, plan: int, gradients: Any, limits: Any, *_: Any) -> torch.Tensor:
        return self._table(len(limits))

    def decode_bucket(self, out: Any, data: Any, ends: Any, starts: Any, *_: Any) -> torch.Tensor:
        verdicts = self._verdicts.get(len(starts))
        if verdicts is None:
            verdicts = torch.zeros(1 + len(starts), dtype=torch.int32)
            self._verdicts[len(starts)] = verdicts
        return verdicts

    def write_slot(self, *_: Any) -> None:
        pass

    def decode_slots(
        self,
        out: Any,
        data: Any,
        ends: Any,
        limits: Any,
        places: Any,
        header: Any,
        ranks: int,
        *_: Any,
    ) -> torch.Tensor:
        return self.decode_bucket(out, data, ends, range(len(limits) * ranks))

    def _table(self, rows: int) -> torch.Tensor:
        table = self._tables.get(rows)
        if table is None:
            table = self._tables[rows] = torch.tensor([[0, FRAME, 6, 6, 0, 0, 0, 0, 0, 0]] * rows)
        return table


class Channel:
    """Of the first of some ranks: what it gathers says that all is well, at no cost."""

    rank, size = 0, RANKS

    def __init__(self) -> None:
        self.sequence = self.digest = self.count = 0
        self.spent = 0.0

    def all_gather(self, every: torch.Tensor, mine: torch.Tensor) -> Any:
        start = time.thread_time()
        fronts = every.view(RANKS, -1).numpy()
        for front in fronts:
            wire.write_verdict(front, self.digest, self.sequence)
            records = front[64 : 64 + 24 * self.count].view("<u8").reshape(-1, 3)
            records[:] = FRAME, FRAME, 0
        self.spent += time.thread_time() - start
        return SimpleNamespace(wait=lambda: None)


class Run:
    """A bucket of so many parameters, over and over."""

    def __init__(self, count: int) -> None:
        self.channel = Channel()
        self.exchange = build(
            CODEC.exchange,
            self.channel,  # type: ignore[arg-type]
            lambda: None,  # type: ignore[arg-type,return-value]
            {"cpu": "nccl"},
            check_result=False,
            postpones=False,
        )
        parameters = []
        for index in range(count):
            made = ParameterSlot(f"layer.{index}.weight", torch.zeros(NUMEL))
            made.codec = CODEC
            made.state = cuda.init_state(CODEC, NUMEL, made.name, 0)
            made.limit = SizeLimit(CODEC.max_encoded_len(NUMEL), fixed=False)
            parameters.append(made)
        self.layout = BucketContents(parameters, torch.float32)
        self.buffer = torch.randn(self.layout.numel)
        self.channel.digest, self.channel.count = self.layout.digest, count
        self.sequence = 0
        self.facts = SlotFacts(self.layout.names, [], "refused: ", wire.TEXT_NBYTES, 0)

    def step(self) -> tuple[float, float]:
        """Return the seconds of one send and one receive."""
        bucket = cuda.bucket(self.buffer, True)
        now = time.perf_counter()
        task = BucketTask(self.layout, bucket, Step(self.sequence), True, lambda: 1.0, now)
        self.channel.sequence, self.channel.spent = self.sequence, 0.0
        begun = time.thread_time()
        flight = self.exchange.start(task, self.sequence)
        sent = time.thread_time()
        self.exchange.receive(flight)
        done = time.thread_time()
        self.sequence += 1
        return sent - begun - self.channel.spent, done - sent

    def alone(self) -> tuple[float, float]:
        """Return the seconds of the bucket's part: `fill`, and `average` of what it returned."""
        bucket, layout = cuda.bucket(self.buffer, True), self.layout
        plan = SlotLayout.of(layout, 4)
        rows = torch.zeros((RANKS, plan.nbytes), dtype=torch.uint8)
        slot = torch.zeros(plan.nbytes, dtype=torch.uint8)
        order = SlotOrder(
            [each.codec for each in layout.compressed],
            [each.state for each in layout.compressed],
            *(layout.ends, layout.runs, plan, wire.header_words(layout.digest, 0)),
            None,
            self.facts,
            1.0,
            True,
        )
        begun = time.thread_time()
        filled = bucket.fill(slot, order)
        between = time.thread_time()
        assert filled is not None
        filled.average(rows, senders=False, checks=False)
        return between - begun, time.thread_time() - between


@contextmanager
def replaced() -> Iterator[None]:
    """Have the CUDA backend call operators that do nothing, on tensors of the CPU."""
    nothing = Nothing()
    with (
        patch.object(operators, "_device", "cpu"),
        patch.object(operators, "operators", lambda: nothing),
        patch.object(cuda.encoding, "operators", lambda: nothing),
        patch.object(cuda.states, "operators", lambda: nothing),
        patch.object(cuda.slots, "operators", lambda: nothing),
    ):
        yield


def fitted(seconds: Callable[[Run], tuple[float, ...]], rounds: int) -> list[tuple[float, float]]:
    """Return microseconds a bucket and a parameter of each act, as nine of ten rounds take or more.

    By least squares of the relative error: a bucket of one counts as much as one of 300.
    """
    all_times = []
    for count in COUNTS:
        run = Run(count)
        found = [seconds(run) for _ in range(rounds)][rounds // 4 :]
        all_times.append(1e6 * np.quantile(found, 0.1, axis=0))
    fits = []
    for times in np.array(all_times).T:
        system = np.column_stack([np.ones(len(COUNTS)), COUNTS]) / times[:, None]
        (bucket, parameter), *_ = np.linalg.lstsq(system, np.ones(len(COUNTS)), rcond=None)
        fits.append((float(bucket), float(parameter)))
    return fits


def main(given: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="of each bucket (default: 200)")
    rounds = parser.parse_args(given).rounds
    torch.set_num_threads(1)
    with replaced():
        rows = {
            ("send", "receive"): fitted(Run.step, rounds),
            ("fill alone", "average alone"): fitted(Run.alone, rounds),
        }
    print(f"{'':14} {'us a bucket':>12} {'us a parameter':>15}")
    for names, fits in rows.items():
        for name, (bucket, parameter) in zip(names, fits, strict=True):
            print(f"{name:14} {bucket:12.0f} {parameter:15.2f}")


if __name__ == "__main__":
    main()
