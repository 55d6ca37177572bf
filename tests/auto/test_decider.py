"""What is decided from given times of steps; no clock is read."""

from collections.abc import Callable

import pytest

from gradwire._auto import SETTINGS, SETTLING, Decider, Setting, fastest

Times = Callable[[Setting, float], float]
"""The seconds of a step with a setting, so many seconds after the beginning."""


class Run:
    """Training with steps that take as long as they are said to."""

    def __init__(self, times: Times, setting: Setting = "uncompressed") -> None:
        self.decider = Decider(SETTINGS, setting)
        self.times, self.now = times, 0.0
        self.steps: list[Setting] = []
        self.probing: list[bool] = []
        self._looked = 0.0

    def step(self) -> None:
        self.now += self.times(self.decider.setting, self.now)
        self.steps.append(self.decider.setting)
        self.probing.append(not self.decider.settled)

    def go(self, looks: int) -> "Run":
        """Train for so many looks."""
        for _ in range(looks):
            for _ in range(self.decider.due):
                self.step()
            before = self.decider.setting
            seconds = self.times(before, self.now)
            self.decider.look(seconds, self.now - self._looked)
            self._looked = self.now
            if self.decider.setting != before:
                for _ in range(SETTLING):
                    self.step()
        return self

    def settle(self) -> Setting:
        """Train until it has settled."""
        while not self.decider.settled:
            self.go(1)
        return self.decider.setting


def constant(uncompressed: float, bfloat16: float, codec: float) -> Times:
    times = dict(zip(SETTINGS, (uncompressed, bfloat16, codec), strict=True))
    return lambda setting, _: times[setting]


@pytest.mark.parametrize(
    ("seconds", "setting"),
    [
        ((1.0, 0.98, 0.98), "uncompressed"),
        ((1.0, 0.98, 0.971), "uncompressed"),
        ((1.0, 0.99, 0.96), "codec"),
        ((1.0, 0.96, 0.94), "bfloat16"),
        ((1.0, 1.2, 1.1), "uncompressed"),
        ((1.0, 0.6, 0.1), "codec"),
    ],
)
def test_a_setting_must_gain_three_percent_over_every_milder_one(seconds, setting):
    assert fastest(dict(zip(SETTINGS, seconds, strict=True))) == setting
    assert Run(constant(*seconds)).settle() == setting


def test_all_settings_are_probed_for_a_quarter_of_a_second_and_at_least_five_steps():
    run = Run(constant(0.1, 0.06, 0.02))
    assert run.settle() == "codec"
    measured = {each: run.steps.count(each) for each in SETTINGS}
    assert measured == {"uncompressed": 5, "bfloat16": 5 + SETTLING, "codec": 13 + SETTLING}
    assert run.decider.seconds == {"uncompressed": 0.1, "bfloat16": 0.06, "codec": 0.02}


def test_a_probe_that_loses_ends_after_three_steps():
    run = Run(constant(0.01, 0.02, 0.05))
    assert run.settle() == "uncompressed"
    assert run.steps.count("bfloat16") == run.steps.count("codec") == 3 + SETTLING


def test_settings_that_are_close_are_probed_twice_so_that_one_slow_moment_does_not_decide():
    def times(setting: Setting, now: float) -> float:
        return {"uncompressed": 0.1, "bfloat16": 0.2, "codec": 0.09}[setting] * (
            1.1 if setting == "codec" and now < 3.0 else 1.0
        )

    run = Run(times)
    assert run.settle() == "codec"
    order = [each for at, each in enumerate(run.steps) if not at or each != run.steps[at - 1]]
    assert order == ["uncompressed", "bfloat16", "codec", "uncompressed", "codec"]


def test_the_setting_of_a_checkpoint_is_probed_first():
    run = Run(constant(0.1, 0.06, 0.02), "codec")
    assert run.settle() == "codec"
    assert run.steps[0] == "codec"
    assert run.steps.count("uncompressed") == 3 + SETTLING


def test_steps_that_drift_twice_in_a_row_begin_everything_anew():
    def times(setting: Setting, now: float) -> float:
        slow = now > 20.0
        return {"uncompressed": 1.0, "bfloat16": 0.6, "codec": 0.12}[setting] if slow else 0.1

    run = Run(times)
    assert run.settle() == "uncompressed"
    while run.now < 20.0:
        run.go(1)
        assert run.decider.settled
    checks = 0
    while run.decider.settled:
        run.go(1)
        checks += 1
    assert checks in (1, 2)  # beside the one in which it changed
    assert run.settle() == "codec"


@pytest.mark.parametrize("factor", [1.25, 0.8])
def test_a_smaller_drift_and_a_single_check_change_nothing(factor):
    run = Run(constant(0.1, 0.1, 0.1))
    run.settle()
    for at in range(20):
        seconds = 1.0 if at % 2 else 0.1 * factor
        run.decider.look(seconds, 0.0)
        assert run.decider.settled


def test_probes_take_one_percent_of_the_time_once_settled():
    run = Run(constant(0.1, 0.09, 0.05))
    run.settle()
    began = len(run.steps)
    while run.now < 5000.0:
        run.go(1)
    again = sum(run.probing[began:]) / len(run.steps[began:])
    assert 0.0 < again < 0.02  # of the steps; those of the others are longer
    elapsed = sum(
        run.times(each, 0.0)
        for each, probes in zip(run.steps[began:], run.probing[began:], strict=True)
        if probes
    )
    assert elapsed < 0.0101 * run.now


def test_checks_come_at_growing_intervals_of_a_minute_at_most():
    run = Run(constant(0.01, 0.02, 0.02))
    run.settle()
    seen = []
    while len(seen) < 7:
        seen.append(run.decider.due)
        run.go(1)
    assert seen == [8, 16, 32, 64, 128, 256, 256]
    slow = Run(constant(3.0, 9.0, 9.0))
    slow.settle()
    slow.go(4)
    assert 3.0 * slow.decider.due <= 60.0


def test_steps_that_alternate_do_not_cost_most_of_the_time():
    """Checks do not come closer together after a drift."""
    run = Run(lambda setting, now: 0.1 if int(now / 40) % 2 else 0.2)
    run.go(400)
    assert sum(run.probing[200:]) < 0.2 * len(run.probing[200:])


def test_a_setting_that_is_left_out_is_never_used_again():
    run = Run(constant(0.1, 0.09, 0.01))
    assert run.settle() == "codec"
    run.decider.leave_out("codec")
    assert run.decider.setting == "uncompressed"
    began = len(run.steps)
    assert run.settle() == "bfloat16"
    run.go(300)
    assert "codec" not in run.steps[began:]


def test_equal_figures_lead_to_equal_decisions():
    def times(setting: Setting, now: float) -> float:
        return {"uncompressed": 0.1, "bfloat16": 0.08, "codec": 0.07}[setting] * (1 + now % 0.7)

    one, other = Run(times).go(200), Run(times).go(200)
    assert one.steps == other.steps
    assert len(set(one.steps)) == 3
