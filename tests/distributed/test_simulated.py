"""Simulated ranks of benches/accuracy train as real ranks do."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import gradwire
from benches.accuracy import run as running
from benches.accuracy.methods import ADAMW, SGD, Method
from gradwire.schedule import WarmUp
from tests.benches.accuracy.toy import Toy
from tests.distributed.ranks import Ranks
from tests.distributed.scenarios.simulated import RATE

STEPS = 30

CASES: list[tuple[str | None, dict[str, Any], str]] = [  # preset, its options, optimizer
    (None, {}, "sgd"),
    (None, {}, "adamw"),
    ("topk", {"ratio": 0.01}, "sgd"),
    ("topk", {"ratio": 0.01}, "adamw"),
    ("onebit", {}, "adamw"),
    ("qsgd", {}, "adamw"),
    ("dgc", {"ratio": 0.01}, "sgd"),
    ("adam", {"ratio": 0.01}, "adamw"),
    ("adam_onebit", {}, "adamw"),
    ("scalecom", {"ratio": 0.02}, "adamw"),
    ("randomk", {"ratio": 0.1, "memory": gradwire.memory.Residual(decay=0.9)}, "sgd"),
    ("sparseloco", {"k": 64, "exchange": gradwire.exchange.ReduceScatter()}, "adamw"),
    ("onebit", {"exchange": gradwire.exchange.QuantizedAllReduce()}, "adamw"),
    ("qsgd", {"exchange": gradwire.exchange.QuantizedAllReduce()}, "sgd"),
    ("adam_onebit", {"exchange": gradwire.exchange.QuantizedAllReduce()}, "adamw"),
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As the ranks have it: sums depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.full
@pytest.mark.parametrize(("preset", "options", "optimizer"), CASES)
def test_simulated_ranks_equal_real_ones_bit_for_bit(
    two: Ranks, preset: str | None, options: dict[str, Any], optimizer: str
) -> None:
    compare(two, preset, options, optimizer)


def test_a_schedule_is_simulated_as_well(two: Ranks) -> None:
    compare(two, "adam", {"ratio": 0.01}, "adamw", (0.3, 0.1))


def compare(
    two: Ranks,
    preset: str | None,
    options: dict[str, Any],
    optimizer: str,
    ratios: tuple[float, ...] = (),
) -> None:
    """Train twice."""
    real = two.run(
        "simulated.real",
        preset=preset,
        options=options,
        optimizer=optimizer,
        ratios=ratios,
        steps=STEPS,
    )[0]
    codec = None if preset is None else getattr(gradwire, preset)(**options)
    schedule = WarmUp(ratios) if ratios else None
    method = Method(codec, optimizer, ADAMW if optimizer == "adamw" else SGD, schedule)
    task = Kept()
    curve = running.run(task, method, RATE, ranks=2, seed=0, steps=STEPS, evaluations=1)
    simulated = {name: each.numpy() for name, each in task.last.state_dict().items()}
    for name, value in real.pop("state").items():
        if value.dtype == np.float32:  # not the count of batches, which every rank adds to
            np.testing.assert_array_equal(simulated[name], value, err_msg=name)
    nbytes = real.pop("nbytes")
    if nbytes is not None:
        assert curve.bytes_per_step == pytest.approx(nbytes, abs=512)  # heads of more buckets
    assert curve.points == [{"step": STEPS, **real}]


class Kept(Toy):
    """Keeps the model."""

    def model(self, seed: int) -> Any:
        self.last = super().model(seed)
        return self.last
