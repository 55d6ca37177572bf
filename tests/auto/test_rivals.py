"""What a comparison is expected to lose, and how long it takes."""

import pytest

from gradwire.auto import FP32, Setting
from gradwire.auto.known import Known
from gradwire.auto.rivals import challenge
from gradwire.cost import Link
from tests.auto.test_exchanges import model
from tests.auto.world import World, fresh

DENSE, CODED = (FP32,) * 3, (Setting("codec", 0.1),) * 3


@pytest.mark.parametrize(("used", "other"), [(DENSE, CODED), (CODED, DENSE)])
def test_a_comparison_loses_the_step_that_sends_all_there_or_on_the_way_back(used, other):
    world, known, found = World(1e9), Known(), model(2, Link(1e9, 1e-4), ratios=(0.1,))
    for plan in (used, other):  # as fast as each other
        known.note(plan, world.figures(DENSE, 9), 0)
    tried = challenge(found, known, used, 10_000, 2)
    assert tried is not None
    assert tried.plan == other
    all_sent = found.leaving(CODED, DENSE)
    assert tried.lost == pytest.approx(all_sent)
    assert tried.leaving == (all_sent if used == CODED else 0.0)


def test_steps_of_a_minute_are_not_repeated_for_long_where_plans_are_close():
    world, decider = World(3e7, compute=60.0), fresh()
    world.run(decider, 80)
    spans, before, begun = [], DENSE, 0
    for at, plan in world.looks:
        if plan != before:
            spans.append(at - begun)
            before, begun = plan, at
    assert len(spans) > 2
    assert max(spans) <= 5
