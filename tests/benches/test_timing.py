"""The clock of the benchmark: what it counts, on a clock and a device that only pretend."""

import time

import pytest
import torch

from benches.compare.timing import timed


def nothing(*_: object) -> None:
    pass


class Device:
    """A device that does its work when it is waited for, as a GPU does behind one's back."""

    def __init__(self) -> None:
        self.now, self.queued = 0.0, 0.0

    def launch(self, seconds: float) -> str:
        self.queued += seconds
        return "launched"

    def synchronize(self) -> None:
        self.now += self.queued
        self.queued = 0.0


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", made.synchronize)
    monkeypatch.setattr(time, "perf_counter", lambda: made.now)
    return made


def test_mistake_10_work_on_a_gpu_is_waited_for(device):
    """SIDCo's micro-benchmark compares a device to a string and never synchronizes."""
    assert timed(lambda: device.launch(3.0), nothing) == (3.0, "launched")


def test_what_was_launched_before_is_not_counted(device):
    device.launch(5.0)
    assert timed(lambda: device.launch(3.0), nothing)[0] == 3.0
    assert timed(lambda: device.launch(1.0), lambda: device.launch(7.0), 3)[0] == 1.0
