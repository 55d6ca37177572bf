"""The suite of devices on GPUs: two processes over Gloo share one, and NCCL takes one each."""

from collections.abc import Iterator

import pytest
import torch

import gradwire.torch
from tests.distributed.device_suite import DeviceSuite
from tests.distributed.ranks import Nursery, Ranks

if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)

MODULE = f"gradwire.torch.backends.{gradwire.torch.backend('cuda').name}.buckets"


@pytest.fixture(scope="module")
def gloo(nursery: Nursery) -> Iterator[Ranks]:
    """Two ranks with DDP on Gloo."""
    yield from _ranks(nursery, "gloo")


@pytest.fixture(scope="module")
def nccl(nursery: Nursery) -> Iterator[Ranks]:
    """Two ranks with DDP on NCCL."""
    yield from _ranks(nursery, "nccl")


def _ranks(nursery: Nursery, transport: str) -> Iterator[Ranks]:
    ranks = Ranks(nursery, 2, timeout=120.0, transport=transport)
    yield ranks
    ranks.stop()


class TestGloo(DeviceSuite):
    """Two processes with the process group of DDP on Gloo; they may share a GPU."""

    device = "cuda"
    module = MODULE

    @pytest.fixture
    def there(self, gloo: Ranks) -> Ranks:
        """The ranks."""
        return gloo


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL takes a GPU per process")
class TestNccl(DeviceSuite):
    """Two processes with the process group of DDP on NCCL."""

    device = "cuda"
    module = MODULE

    @pytest.fixture
    def there(self, nccl: Ranks) -> Ranks:
        """The ranks."""
        return nccl
