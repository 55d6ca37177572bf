"""Decisions follow from figures alone: no clock, no processes."""

import dataclasses
from random import Random

import pytest

from gradwire._auto import BF16, FP32, Decider, Setting, combined, describe, ladder
from tests.auto.world import World, fresh


def kinds(plan):
    return {each.kind for each in plan}


def test_a_slow_link_is_answered_by_the_codec_and_a_fast_one_by_nothing():
    assert kinds(World(20e6).run(fresh(), 100)) == {"codec"}
    assert World(1e12).run(fresh(), 2000) == (FP32, FP32, FP32)


def test_where_nothing_is_exposed_nothing_is_calibrated_or_tried():
    world = World(1e12)
    decider = fresh()
    world.run(decider, 5000)
    assert world.models == 0
    assert {plan for _, plan in world.looks} == {(FP32, FP32, FP32)}
    assert "no codec could gain more" in decider.reason


def test_a_look_is_rare_once_nothing_changes():
    world = World(1e12)
    decider = fresh()
    world.run(decider, 4000)
    steps = [at for at, _ in world.looks]
    assert decider.due == 256
    assert len(steps) < 25


def test_the_weakest_of_equally_fast_plans_is_used():
    # So fast a computation beside it that every ratio hides, if it is encoded for nothing.
    world = World(2e9, compute=5.0)
    plan = world.run(fresh(), 500)
    assert plan == (FP32, FP32, FP32)
    slow = World(2e6)
    assert {each.ratio for each in slow.run(fresh(), 500)} == {0.01}
    middle = World(1e9, compute=1.5)
    ratios = {each.ratio for each in middle.run(fresh(), 500) if each.kind == "codec"}
    assert ratios
    assert ratios <= {0.1, 0.05}


def test_no_ratio_below_the_bound_is_used():
    assert ladder(0.05) == (0.1, 0.05)
    assert ladder(0.03) == (0.1, 0.05, 0.03)
    assert ladder(1.0) == (1.0,)
    assert ladder(0.01, most=0.02) == (0.02, 0.01)
    assert ladder(0.05, most=0.02) == (0.05,)
    world = World(1e6, ratios=ladder(0.05))
    assert {each.ratio for each in world.run(fresh(), 500)} == {0.05}


@pytest.mark.parametrize("wrong", [{"codec": 400.0}, {"codec": 400.0, "bf16": 3.0}])
def test_what_does_not_keep_its_promise_is_taken_back_and_not_tried_again_soon(wrong):
    world = World(20e6, wrong=wrong)
    decider = fresh()
    plan = world.run(decider, 300)
    assert plan == ((BF16,) * 3 if "bf16" not in wrong else (FP32,) * 3)
    tried = [at for at, each in world.looks if kinds(each) == {"codec"}]
    assert tried
    assert max(tried) < 100
    world.run(decider, 200)
    assert max(at for at, each in world.looks if kinds(each) == {"codec"}) == max(tried)


def test_failures_are_repeated_at_growing_distances():
    world = World(20e6, wrong={"codec": 400.0, "bf16": 3.0})
    decider = fresh()
    world.run(decider, 20_000)
    begun = [at for at, each in world.looks if kinds(each) == {"codec"}]
    assert len(begun) < 60  # looks, of 20 000 steps


def test_a_faster_link_ends_compression_and_a_slower_one_begins_it():
    world = World(20e6)
    decider = fresh()
    assert kinds(world.run(decider, 100)) == {"codec"}
    world.bandwidth = 1e12
    assert world.run(decider, 200) == (FP32, FP32, FP32)
    world.bandwidth = 20e6
    assert kinds(world.run(decider, 600)) == {"codec"}


@pytest.mark.parametrize("seed", range(8))
def test_one_stalled_step_in_each_phase_changes_no_decision(seed):
    """A stall that counted would make every trial lose, or every plan before it."""
    slow = World(20e6, jitter=0.05, stall=10.0, random=Random(seed))
    assert kinds(slow.run(fresh(), 3000)) == {"codec"}
    fast = World(1e12, jitter=0.05, stall=10.0, random=Random(seed))
    fast.run(fresh(), 3000)
    assert {plan for _, plan in fast.looks} == {(FP32,) * 3}
    wrong = World(20e6, wrong={"codec": 400.0}, jitter=0.05, stall=10.0, random=Random(seed))
    assert wrong.run(fresh(), 300) == (BF16,) * 3


def test_what_a_trial_has_beaten_is_measured_once_more():
    class Held(World):
        """Something else holds up the first steps, and only these."""

        def disturbed(self, figures):
            slow = 1.5 if len(self.looks) < 2 else 1.0
            return dataclasses.replace(figures, period=slow * figures.period)

    world, decider = Held(20e6, wrong={"codec": 45.0, "bf16": 30.0}), fresh()
    assert world.run(decider, 300) == (FP32,) * 3
    tried = [at for at, plan in world.looks if "codec" in kinds(plan)]
    assert tried
    assert max(tried) < 60
    assert decider.reason.startswith("Using fp32")


def test_a_plan_that_has_become_slower_than_another_one_was_gives_way():
    world, decider = World(8e9, compute=0.2), fresh()
    assert world.run(decider, 500) != (FP32,) * 3
    dense = world.figures((FP32,) * 3, 8).period
    used = world.figures(decider.plan, 8).period
    # Its exchange takes as long as before: nothing else tells that it has become slow.
    world.wrong = {each.kind: 1.5 * dense / used for each in decider.plan if each != FP32}
    assert "codec" not in kinds(world.run(decider, 1000))


def test_one_strange_look_changes_nothing():
    world = World(100e6)
    decider = fresh()
    plan = world.run(decider, 100)
    models = world.models
    world.bandwidth = 20e6
    decider.look(world.figures(decider.plan, 8), world)
    world.bandwidth = 100e6
    assert world.run(decider, 100) == plan
    assert world.models == models


def test_small_changes_of_the_link_change_nothing():
    world = World(100e6)
    decider = fresh()
    plan = world.run(decider, 100)
    for factor in (0.9, 1.1, 0.85, 1.15) * 5:
        world.bandwidth = factor * 100e6
        assert world.run(decider, 50) == plan


def test_buckets_without_compressible_parameters_stay_dense():
    plan = World(20e6, codable=(False, True, True)).run(fresh(), 200)
    assert [each.kind == "codec" for each in plan] == [False, True, True]


def test_the_reason_names_the_figures():
    world = World(20e6)
    decider = fresh()
    world.run(decider, 100)
    assert "20 Mbit/s" in decider.reason
    assert "fp32" in decider.reason
    assert decider.reason.endswith(".")
    assert decider.reason.count(". ") == 0  # one sentence


def test_the_same_figures_lead_to_the_same_decisions():
    first, second = (World(50e6, wrong={"codec": 1.2}) for _ in range(2))
    assert first.run(fresh(), 3000) == second.run(fresh(), 3000)
    assert first.looks == second.looks


def test_a_run_that_resumes_with_the_codec_stays_with_it_or_leaves_it():
    plan = (Setting("codec", 0.05),) * 3
    assert kinds(World(20e6).run(Decider(plan), 300)) == {"codec"}
    assert World(1e12).run(Decider(plan), 300) == (FP32, FP32, FP32)


def test_it_goes_on_with_the_steps_that_are_known_if_they_do_not_become_more():
    """Passes that were thrown away, or paused, leave no record."""

    class Forgetful(World):
        def disturbed(self, figures):
            return dataclasses.replace(figures, steps=2)

    world = Forgetful(20e6)
    decider = fresh()
    assert kinds(world.run(decider, 500)) == {"codec"}
    assert decider.reason.startswith("Using ")


def test_the_error_of_a_median_falls_with_its_steps_and_grows_with_their_spread():
    figures = World(20e6).figures((FP32,) * 3, 1)
    once = figures.error
    assert 0.05 * figures.period < once < 0.2 * figures.period
    often = dataclasses.replace(figures, steps=48)
    assert often.error < 0.1 * once
    assert dataclasses.replace(often, spread=0.3 * figures.period).error > 2.0 * often.error


def test_figures_of_ranks_are_combined_by_who_waits_least_and_computes_longest():
    world = World(20e6)
    plan = (FP32, FP32, FP32)
    first = world.figures(plan, 4)
    world.compute = 0.4
    second = world.figures(plan, 6)
    for every in ([first, second], [second, first]):
        found = combined(every)
        assert found.steps == 4
        assert found.period == max(first.period, second.period)
        assert found.exchange == tuple(map(min, first.exchange, second.exchange))
    other = World(20e6, codable=(False, True, True)).figures(plan, 4)
    with pytest.raises(ValueError, match="different buckets"):
        combined([first, other])


def test_plans_in_words():
    assert describe((FP32, FP32)) == "fp32"
    codec = Setting("codec", 0.02)
    assert (
        describe((codec, FP32, codec))
        == "the codec at ratio 0.02 for 2 of 3 and fp32 for 1 of 3 buckets"
    )
