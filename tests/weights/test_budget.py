"""Bits under a budget: the choice is the best one, and never over."""

import itertools

import numpy as np
import pytest

from gradwire.weights.budget import allocate

random = np.random.default_rng(5)
CHOICES = (2, 3, 4, 8)


def layers(count, unit=1):
    """Sizes in bits of layers with a constant part, and costs that mostly fall with bits."""
    numels = unit * random.integers(1, 40, count)
    sizes = [[448 + int(numel) * bits for bits in CHOICES] for numel in numels]
    costs = [[float(random.lognormal(-bits, 1.0)) for bits in CHOICES] for _ in numels]
    return sizes, costs


def total(table, chosen):
    return sum(row[i] for row, i in zip(table, chosen, strict=True))


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.9, 1.0, 2.0])
def test_the_choice_for_eight_layers_is_the_best_of_all(share):
    sizes, costs = layers(8, unit=64)
    low, high = (sum(map(pick, sizes)) for pick in (min, max))
    limit = low + int(share * (high - low))
    chosen = allocate(sizes, costs, limit)
    every = np.array(list(itertools.product(range(4), repeat=8)))
    taken = sum(np.array(sizes[i])[every[:, i]] for i in range(8))
    spent = sum(np.array(costs[i])[every[:, i]] for i in range(8))
    assert total(sizes, chosen) <= limit
    assert total(costs, chosen) == pytest.approx(spent[taken <= limit].min())


def test_three_hundred_layers_of_odd_sizes_are_never_over_and_near_the_best_bound():
    sizes, costs = layers(300)
    sizes = [[size * 100_003 + i for size in row] for i, row in enumerate(sizes)]
    costs = [sorted(row, reverse=True) for row in costs]
    low, high = (sum(map(pick, sizes)) for pick in (min, max))
    limit = (low + high) // 2
    chosen = allocate(sizes, costs, limit)
    assert total(sizes, chosen) <= limit
    # A lower bound: the best choice for a price of a bit, at any price.
    bounds = []
    for price in np.geomspace(1e-12, 1e-6, 200):
        priced = np.array(costs) + price * np.array(sizes)
        bounds.append(priced.min(axis=1).sum() - price * limit)
    assert total(costs, chosen) <= 1.02 * max(bounds)


def test_costs_that_are_no_numbers_are_avoided():
    assert allocate([[2, 3], [2, 3]], [[float("nan"), 1.0], [0.0, 5.0]], 5) == [1, 0]
