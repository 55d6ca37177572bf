"""Ranks that have the trainers' packages imported."""

from importlib.util import find_spec

import pytest

from tests.distributed.ranks import Nursery, Ranks

IMPORTS = {
    "lightning": ["lightning.pytorch"],
    "transformers": ["gradwire.torch.transformers", "transformers.models.llama.modeling_llama"],
    "accelerate": ["gradwire.torch.accelerate"],
}


@pytest.fixture(scope="session")
def nursery():
    """Where packages are imported, once, which takes longer than all that they are tested with."""
    there = [each for name, imports in IMPORTS.items() if find_spec(name) for each in imports]
    nursery = Nursery("tests.trainers", *there)
    yield nursery
    nursery.stop()


def ranks_of(size):
    @pytest.fixture(scope="session")
    def ranks(nursery):
        """So many ranks that serve all tests."""
        ranks = Ranks(nursery, size)
        yield ranks
        ranks.stop()

    return ranks


lightning_two, lightning_three, lightning_four = (ranks_of(size) for size in (2, 3, 4))
hugging_two, hugging_three = (ranks_of(size) for size in (2, 3))


@pytest.fixture
def expendable(nursery):
    """Two ranks for one test, which are out of step in the end."""
    ranks = Ranks(nursery, 2, timeout=200.0)
    yield ranks
    ranks.stop()
