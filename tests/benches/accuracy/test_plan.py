"""Which runs a plan makes."""

import pytest

from benches.accuracy.plan import AT_ONE_RATE, DEFAULT, MADE, SECTIONS, Plan, Run, nearest

TEXT = SECTIONS["text"]
AT_THE_RATE_OF_DENSE = (*AT_ONE_RATE, "adam(0.01), low_memory")


def finish(plan: Plan, score) -> dict[Run, float]:
    """Make all runs of a plan, one at a time."""
    scores: dict[Run, float] = {}
    while missing := plan.missing(scores):
        run = missing[0]
        assert run not in scores
        scores[run] = score(run)
    return scores


def peak(at: float, width: float = 1.0):
    """A measure that is best at one place of the grid."""
    return lambda run: -width * abs(nearest(TEXT.grid, run.learning_rate) - at) + 0.001 * run.seed


@pytest.mark.parametrize("place", [0, 1, 3, 5, 8])
def test_a_search_ends_with_both_rates_beside_the_best_one_tried(place):
    plan = Plan(("text",))
    scores = finish(plan, peak(place))
    for method, ranks in TEXT.methods:
        assert plan.best(TEXT, method, ranks, scores) == TEXT.grid[place]
        if method in AT_THE_RATE_OF_DENSE:
            continue
        for beside in (place - 1, place + 1):
            if 0 <= beside < len(TEXT.grid):
                assert Run("text", method, ranks, TEXT.grid[beside], 0) in scores


def test_codecs_for_adamw_are_trained_at_the_best_rate_of_uncompressed_training():
    def score(run: Run) -> float:
        return float(peak(3)(run) if run.method not in AT_ONE_RATE else peak(5)(run))

    plan = Plan(("text", "fashion"))
    scores = finish(plan, score)
    for method in AT_ONE_RATE:
        mine = [
            (run.learning_rate, run.seed)
            for run in scores
            if (run.section, run.method, run.ranks) == ("text", method, 8)
        ]
        beside = [(TEXT.grid[place], 0) for place in (2, 4) if method == DEFAULT]
        assert sorted(mine) == sorted([*((TEXT.grid[3], seed) for seed in range(3)), *beside])
        assert plan.best(TEXT, method, 8, scores) == TEXT.grid[3]
    # Where uncompressed training depends on the ranks, its rate with as many.
    few = Plan(("fashion",))
    some = {run: value for run, value in scores.items() if run.section == "fashion"}
    eight = {
        run: value for run, value in some.items() if (run.method, run.ranks) != ("dense AdamW", 8)
    }
    assert few.best(SECTIONS["fashion"], "adam(0.01)", 2, eight) is not None
    assert few.best(SECTIONS["fashion"], "adam(0.01)", 8, eight) is None


def test_a_quick_plan_has_two_rates_one_seed_and_two_ranks():
    plan = Plan(quick=True)
    scores = finish(plan, lambda run: 0.0)
    assert {run.seed for run in scores} == {0}
    assert {run.ranks for run in scores} == {2}
    few = [key for name in MADE for key in SECTIONS[name].methods if key[1] == 2]
    given = [key for key in few if key[0] in AT_THE_RATE_OF_DENSE]
    assert len(scores) == 2 * len(few) - len(given)
    assert plan.steps("text") == TEXT.steps // 4
    assert plan.best(TEXT, "adam(0.01)", 2, scores) is not None
