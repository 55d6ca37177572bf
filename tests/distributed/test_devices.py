"""The suite of devices without one: over copies, and by kernels that are emulated."""

from collections.abc import Callable

import pytest

from tests.csrc.emulated.build import build
from tests.distributed.device_suite import DeviceSuite
from tests.distributed.ranks import Ranks


class TestStaged(DeviceSuite):
    """Tensors on the CPU that are copied before they are encoded."""

    device = "cpu"
    module = "gradwire.torch.backends.host"

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


class TestCarried(DeviceSuite):
    """The same, with frames that stay where tensors are."""

    device = "cpu"
    module = "gradwire.torch.backends.cuda.buckets"
    carried_by = "carrier"

    @pytest.fixture
    def there(self, kept: Callable[[int, str], Ranks]) -> Ranks:
        """Two ranks with a backend that stands for NCCL."""
        return kept(2, "carried")

    @pytest.mark.parametrize("exchange", ["gather", "dense"])
    def test_no_frame_and_no_value_goes_by_the_host(self, there: Ranks, exchange: str) -> None:
        for found in there.run("devices.crossed", device="cpu", exchange=exchange):
            # A row of eight numbers per parameter, a kilobyte per slot, and flags.
            assert 0 < found["up"] <= 1100
            assert 0 < found["down"] <= 2 * 1024 + 600
            assert found["wire"] > 3000, "there is more than that to send"

    def test_no_group_is_made_that_torch_would_split_off_with_other_ranks(
        self, there: Ranks
    ) -> None:
        here = {"cpu": "carrier"}
        assert there.run("devices.split") == [[here, here, {}, here]] * 2

    def test_ranks_with_different_ways_for_frames_are_refused(self, there: Ranks) -> None:
        for text in there.run("devices.disagreeing"):
            assert text == (
                "rank 1 and rank 0 attached with different carriers of frames: {} and "
                "{'cpu': 'carrier'}"
            )
