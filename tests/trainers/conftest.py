"""Ranks that have the trainers' packages imported, each trainer with its own."""

from collections.abc import Callable, Iterator

import pytest

from tests.distributed.ranks import Nursery, Ranks

SCENARIOS = "tests.trainers.scenarios"


@pytest.fixture(scope="session")
def lightning_nursery() -> Iterator[Nursery]:
    """Where Lightning is imported, once: that takes longer than all that it is tested with."""
    nursery = Nursery(SCENARIOS, "lightning.pytorch")
    yield nursery
    nursery.stop()


@pytest.fixture(scope="session")
def lightning_ranks(lightning_nursery: Nursery) -> Iterator[Callable[[int], Ranks]]:
    """Sets of ranks for Lightning, by their number."""
    sets: dict[int, Ranks] = {}

    def find(world_size: int) -> Ranks:
        if world_size not in sets:
            sets[world_size] = Ranks(lightning_nursery, world_size)
        return sets[world_size]

    yield find
    for each in sets.values():
        each.stop()


@pytest.fixture(scope="session")
def hugging_face() -> Iterator[Callable[[int], Ranks]]:
    """Sets of ranks for Accelerate and Transformers, by their number."""
    nursery = Nursery(
        SCENARIOS, "gradwire.torch.transformers", "transformers.models.llama.modeling_llama"
    )
    sets: dict[int, Ranks] = {}

    def find(world_size: int) -> Ranks:
        if world_size not in sets:
            sets[world_size] = Ranks(nursery, world_size)
        return sets[world_size]

    yield find
    for each in sets.values():
        each.stop()
    nursery.stop()
