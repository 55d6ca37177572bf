"""Choose the cases: every size, distribution, ratio and number of threads, in some combinations.

Tensors of up to a million entries take seconds and are measured in all combinations. At 25 M, one
thread runs every distribution and ratio, and more threads only the distribution with the heaviest
tails; at 100 M there are only that distribution, the smallest ratio and one thread. If sizes,
ratios, distributions or threads are given, all their combinations are run.
"""

import argparse
from itertools import product

from .laws import LAWS, current_name
from .rounds import Case

SIZES = (1_000, 100_000, 1_000_000, 25_000_000, 100_000_000)
RATIOS = (0.1, 0.01, 0.001)
THREADS = (1, 2)
HEADLINE = 25_000_000
HEADLINE_LAW, HEADLINE_RATIO = "student-t3", 0.001
CROSSED_UP_TO = 1_000_000

Axes = tuple[tuple[int, ...], tuple[str, ...], tuple[float, ...], tuple[int, ...]]
ALL: Axes = SIZES, tuple(LAWS), RATIOS, THREADS
QUICK: Axes = (1_000_000, HEADLINE), (HEADLINE_LAW,), (HEADLINE_RATIO,), THREADS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", type=int, nargs="+", metavar="N")
    parser.add_argument("--ratios", type=float, nargs="+", metavar="R")
    parser.add_argument("--laws", type=current_name, nargs="+", choices=[*LAWS])
    parser.add_argument("--threads", type=int, nargs="+", metavar="T")


def cases(chosen: argparse.Namespace, quick: bool = False) -> list[Case]:
    """Return the cases in the order to run them; cases that share tensors are adjacent."""
    named = chosen.sizes, chosen.laws, chosen.ratios, chosen.threads
    axes = [given or usual for given, usual in zip(named, QUICK if quick else ALL, strict=True)]
    every = [Case(law, numel, ratio, threads) for numel, law, ratio, threads in product(*axes)]
    return every if quick or any(named) else [case for case in every if _kept(case)]


def _kept(case: Case) -> bool:
    if case.numel <= CROSSED_UP_TO:
        return True
    heavy = case.law == HEADLINE_LAW
    if case.numel <= HEADLINE:
        return case.threads == 1 or heavy
    return heavy and case.ratio == HEADLINE_RATIO and case.threads == 1
