"""Which cases a run has."""

import argparse
import itertools

import pytest

from benches.compare import plan
from benches.compare.laws import LAWS


def chosen(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    plan.add_arguments(parser)
    return parser.parse_args(arguments)


def test_without_arguments_every_size_law_ratio_and_number_of_threads_is_there():
    cases = plan.cases(chosen())
    assert {case.numel for case in cases} == set(plan.SIZES)
    assert {case.law for case in cases} == set(LAWS)
    assert {case.ratio for case in cases} == set(plan.RATIOS)
    assert {case.threads for case in cases} == set(plan.THREADS)


def test_the_headline_size_has_every_law_and_ratio_on_one_thread():
    cases = [case for case in plan.cases(chosen()) if case.numel == plan.HEADLINE]
    single = {(case.law, case.ratio) for case in cases if case.threads == 1}
    assert single == {(law, ratio) for law in LAWS for ratio in plan.RATIOS}


def test_cases_that_share_their_tensors_follow_each_other():
    tensors = [(case.law, case.numel) for case in plan.cases(chosen())]
    changes = sum(a != b for a, b in itertools.pairwise(tensors))
    assert changes == len(set(tensors)) - 1


def test_what_is_named_is_crossed_in_full():
    cases = plan.cases(chosen("--sizes", "100000000", "--laws", "laplace", "--threads", "2"))
    assert [case.ratio for case in cases] == list(plan.RATIOS)


def test_quick_is_four_cases():
    assert len(plan.cases(chosen(), quick=True)) == 4


@pytest.mark.parametrize("name", ["student-t3", "student-t(3)"])
def test_a_law_also_goes_by_its_former_name(name):
    assert {case.law for case in plan.cases(chosen("--laws", name))} == {"student-t3"}
