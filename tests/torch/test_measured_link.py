"""How a link is measured, with collectives whose times are known."""

from dataclasses import dataclass, field

import pytest

pytest.importorskip("torch", reason="these tests need the extra [torch]")

from gradwire.torch.cost import link as module
from gradwire.torch.cost.link import measure_by

LATENCY = 2e-4


@dataclass
class Clocked:
    """Two ranks with a link of so many bits per second, and the time that all of it has taken."""

    bandwidth: float
    size: int = 2
    now: float = 0.0
    sizes: list[int] = field(default_factory=list)

    def add_up(self, vector):
        nbytes = 4 * vector.numel()
        self.sizes.append(nbytes)
        self.now += LATENCY + 8.0 * nbytes / self.bandwidth

    def meet(self):
        self.now += LATENCY

    def longest(self, times):
        return times


def measured(monkeypatch, bandwidth, seconds):
    clocked = Clocked(bandwidth)
    monkeypatch.setattr(module.time, "perf_counter", lambda: clocked.now)
    monkeypatch.setattr(module.time, "process_time", lambda: 0.0)
    found = measure_by(clocked, seconds=seconds)
    monkeypatch.undo()
    return clocked, found


@pytest.mark.parametrize("bandwidth", [1e6, 1e7, 5e7, 1e8, 1e9, 1e10])
@pytest.mark.parametrize("seconds", [0.1, 1.0])
def test_the_bandwidth_is_found_at_any_speed(monkeypatch, bandwidth, seconds):
    clocked, found = measured(monkeypatch, bandwidth, seconds)
    assert found.bandwidth == pytest.approx(bandwidth, rel=0.02)
    assert 2 * found.latency == pytest.approx(LATENCY, rel=0.2 if bandwidth > 1e7 else 5.0)
    assert max(clocked.sizes) >= 1 << 18


def test_progress_names_the_sizes_and_ends_at_one():
    clocked, told = Clocked(1e10), []
    measure_by(clocked, seconds=0.01, progress=lambda *what: told.append(what))
    sizes = dict.fromkeys(f"{each:,} bytes" for each in clocked.sizes)
    assert [what for what, _ in told] == [*sizes, "done"]
    shares = [share for _, share in told]
    assert shares == sorted(set(shares))
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    with pytest.raises(TypeError, match="progress must be a function"):
        measure_by(clocked, seconds=0.01, progress=True)


@pytest.mark.parametrize("bandwidth", [5e7, 1e8, 1e9, 1e10])
def test_a_look_of_a_tenth_of_a_second_takes_half_of_one_at_most(monkeypatch, bandwidth):
    clocked, _ = measured(monkeypatch, bandwidth, 0.1)
    assert clocked.now < 0.5
    assert (max(clocked.sizes) >= 1 << 20) == (bandwidth > 1e8)


def test_with_a_second_a_slow_link_is_measured_up_to_a_mebibyte(monkeypatch):
    clocked, _ = measured(monkeypatch, 5e7, 1.0)
    assert max(clocked.sizes) == 1 << 20
