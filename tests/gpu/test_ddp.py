"""The suite of devices on GPUs: two processes over Gloo share one, and NCCL takes one each."""

from collections.abc import Iterator

import pytest
import torch

from tests.distributed.device_suite import DeviceSuite
from tests.distributed.ranks import Nursery, Ranks

if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)


class TestGloo(DeviceSuite):
    """Two processes with the process group of DDP on Gloo."""

    device = "cuda"
    module = "gradwire.torch.backends.host.buckets"

    @pytest.fixture(scope="class")
    def there(self, nursery: Nursery) -> Iterator[Ranks]:
        """Two ranks."""
        ranks = Ranks(nursery, 2, timeout=120.0)
        yield ranks
        ranks.stop()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL takes a GPU per process")
class TestNccl(DeviceSuite):
    """Two processes with the process group of DDP on NCCL."""

    device = "cuda"
    module = "gradwire.torch.backends.host.buckets"

    @pytest.fixture(scope="class")
    def there(self, nursery: Nursery) -> Iterator[Ranks]:
        """Two ranks."""
        ranks = Ranks(nursery, 2, timeout=120.0, transport="nccl")
        yield ranks
        ranks.stop()
