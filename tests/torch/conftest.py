"""A model of one rank alone, for what needs no others."""

from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="these tests need the extra [torch]")

import torch
from torch.nn.parallel import DistributedDataParallel


@pytest.fixture(scope="module")
def group() -> Iterator[None]:
    """A process group of one rank."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def model(group: None) -> DistributedDataParallel:
    """A layer with 64 inputs and outputs."""
    return DistributedDataParallel(torch.nn.Linear(64, 64))
