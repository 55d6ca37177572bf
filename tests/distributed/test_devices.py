"""The suite of devices without one: over copies, and by kernels that are emulated."""

from collections.abc import Callable

import pytest

from tests.csrc.emulated.build import build
from tests.distributed.device_suite import DeviceSuite
from tests.distributed.ranks import Ranks


class TestStaged(DeviceSuite):
    """Tensors on the CPU that are copied before they are encoded."""

    device = "cpu"
    module = "gradwire.torch.backends.host.buckets"

    @pytest.fixture
    def there(self, kept: Callable[[int, str], Ranks]) -> Ranks:
        """Two ranks that copy."""
        return kept(2, "host")


class TestKernels(DeviceSuite):
    """Tensors on the CPU that the kernels of the CUDA backend encode."""

    device = "cpu"
    module = "gradwire.torch.backends.cuda.buckets"

    @pytest.fixture
    def there(self, kept: Callable[[int, str], Ranks]) -> Ranks:
        """Two ranks over the emulated kernels."""
        build(operators=True)  # before the ranks, which have no time for it
        return kept(2, "cuda")
