"""What measuring the link may cost."""

import pytest

from gradwire._auto.measurements import PROBE_BITS, PROBE_SECONDS, SHARE, Budget
from tests.auto.world import World, fresh

BANDWIDTH = 1e8


@pytest.mark.parametrize("took", [0.05, 5.0])
def test_the_next_measurement_of_the_link_waits_for_as_long_as_the_last_one_deserves(took):
    budget = Budget()
    first = (PROBE_SECONDS + PROBE_BITS / BANDWIDTH) / (0.5 * SHARE)
    budget.earn(0.99 * first)
    assert not budget.may_probe(BANDWIDTH)
    budget.earn(0.02 * first)
    assert budget.may_probe(BANDWIDTH)
    budget.probed(took)
    budget.earn(0.99 * took / (0.5 * SHARE))
    assert not budget.may_probe(BANDWIDTH)
    budget.earn(0.02 * took / (0.5 * SHARE))
    assert budget.may_probe(BANDWIDTH)


def test_what_another_link_has_taken_to_measure_tells_nothing_of_a_new_one():
    budget = Budget()
    budget.probed(50.0)
    budget.probed(0.0)  # the steps of the new one have told its speed
    budget.begin()
    budget.earn(1.01 * (PROBE_SECONDS + PROBE_BITS / BANDWIDTH) / (0.5 * SHARE))
    assert budget.may_probe(BANDWIDTH)


def test_a_link_that_is_measured_anew_because_it_has_changed_counts_too():
    world, decider = World(1e8, probing=3.0), fresh()
    world.run(decider, 2_000)
    assert decider._budget._probing == 3.0
    world.probing, world.bandwidth = 1.0, 2e7
    world.run(decider, 2_000)
    assert decider._budget._probing == 1.0


@pytest.mark.parametrize("probing", [0.1, 3.0])
def test_with_the_codec_in_use_it_measures_the_link_for_half_a_percent_of_the_time(probing):
    world, decider = World(1e8, probing=probing), fresh()
    world.run(decider, 2_000)
    assert any(each.kind == "codec" for each in decider.plan)
    before, steps = world.models, 40_000
    world.run(decider, steps)
    period = world.figures(decider.plan, 9).period
    # The first is counted as what is usual.
    assert probing * (world.models - before - 1) <= 0.5 * SHARE * steps * period
    assert world.models > before + 1
