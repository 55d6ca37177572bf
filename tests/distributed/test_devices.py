"""The suite of devices over copies: as if the tensors lay elsewhere than on the CPU."""

from collections.abc import Callable

import pytest

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
