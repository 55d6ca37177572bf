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
            # A row of ten numbers per parameter, a kilobyte per slot, and flags. Kernels write the
            # slots that are gathered.
            assert found["up"] <= (0 if exchange == "gather" else 1100)
            assert 0 < found["down"] <= 2 * 1024 + 600
            assert found["wire"] > 3000, "there is more than that to send"

    def test_no_group_is_made_that_torch_would_split_off_with_other_ranks(
        self, there: Ranks
    ) -> None:
        here = {"cpu": "carrier"}
        assert there.run("devices.split") == [[here, here, {}, here]] * 2

    @pytest.mark.parametrize(
        ("fault", "words"),
        [
            ("a wrong byte", "kernels on cpu have failed their trial (another result of frames"),
            ("no extension", "the extension is not installed"),
        ],
    )
    def test_all_ranks_go_by_the_host_where_one_has_to(
        self, there: Ranks, fault: str, words: str
    ) -> None:
        one, other = there.run("devices.disagreeing", fault=fault)
        assert one["averages"] == other["averages"]
        for found in (one, other):
            assert (found["name"], found["carried_by"]) == ("host", "gloo")
            assert words in found["why"]
        assert one["why"].startswith("as on rank 1, where ")
        assert one["said"] == []
        if fault == "a wrong byte":
            (said,) = other["said"]
            assert "step 2, float32" in said
            assert "Please report" in said

    def test_ranks_whose_kernels_are_right_use_them(self, there: Ranks) -> None:
        for found in there.run("devices.disagreeing", fault="none"):
            assert (found["name"], found["carried_by"]) == ("cuda", "carrier")
            assert found["said"] == []

    def test_no_rank_waits_for_one_whose_kernels_hang(self, there: Ranks) -> None:
        one, other = there.run("devices.disagreeing", fault="a hang")
        assert other["error"].startswith("ExtensionError: cpu hangs: ")
        assert one["error"].startswith("ExtensionError: rank 1 cannot attach: cpu hangs: ")

    def test_a_device_without_kernels_is_said_once(self, there: Ranks) -> None:
        for (said,) in there.run("devices.told"):
            assert said.startswith(
                "RuntimeWarning: gradients on meta go by the host in every step: gradwire has no "
                "backend for meta"
            )
            assert "build_cuda()" in said
