"""The suite of devices without one: over copies, and by kernels that are emulated."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.csrc.emulated.build import build
from tests.distributed.device_suite import DeviceSuite
from tests.distributed.ranks import Nursery, Ranks


def _loses_its_device(ranks: Ranks) -> None:
    found = ranks.run("devices.lost")
    text = (
        "rank 1 could not encode: DeviceError: cpu is lost to this process (CUDA error: "
        "unspecified launch failure): nothing can be copied from it or to it any more. "
        "End the process, and restart from a checkpoint"
    )
    for each in found:
        assert each["errors"] == [text, f"gradwire stopped after an earlier error: {text}"]
        assert each["before"] == each["after"], "all is as before the step"
        assert each["steps"] == 2


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

    def test_a_device_that_is_lost_is_one_error_on_all_ranks(self, there: Ranks) -> None:
        _loses_its_device(there)


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

    @pytest.mark.parametrize(
        ("name", "options"),
        [("topk", [{"ratio": 0.05}, {"ratio": 0.4}]), ("qsgd", [{"bits": 2}, {"bits": 8}])],
        ids=["ReduceScatter", "QuantizedAllReduce"],
    )
    def test_as_much_goes_by_the_host_however_much_owners_are_sent(
        self, there: Ranks, name: str, options: list[dict[str, Any]]
    ) -> None:
        exchange = "ReduceScatter" if name == "topk" else "QuantizedAllReduce"
        codecs = [(name, each | {"exchange": exchange}) for each in options]
        runs = [there.run("devices.crossed", device="cpu", exchange=codec) for codec in codecs]
        for few, many in zip(*runs, strict=True):
            assert many["wire"] > 2 * few["wire"]
            assert (many["down"], many["up"]) == (few["down"], few["up"])

    @pytest.mark.full
    @pytest.mark.parametrize(
        ("name", "exchange"), [("topk", "ReduceScatter"), ("onebit", "QuantizedAllReduce")]
    )
    def test_eight_ranks_have_owners_as_on_the_cpu(
        self, nursery: Nursery, name: str, exchange: str
    ) -> None:
        runs = []
        for backend, transport in (("cpu", "gloo"), ("cuda", "carrier")):
            ranks = Ranks(nursery, 8, backend=backend, transport=transport)
            options: dict[str, Any] = {"device": "cpu", "exchange": (name, {}), "ddp": {}}
            runs.append(ranks.run("devices.given", **options))
            ranks.stop()
        for expected, found in zip(*runs, strict=True):
            assert found["exchange"] == f"gradwire.exchange.{exchange}()"
            assert found["carried_by"] == "carrier"
            assert found["averages"] == expected["averages"]
            assert found["state"] == expected["state"]

    def test_a_part_of_ranks_that_are_bound_to_devices_connects_by_itself(
        self, there: Ranks
    ) -> None:
        for found in there.run("devices.alone"):
            assert found["made"] == [(1, "None", "cpu:carrier"), (2, "cpu:0", "cpu:carrier")]
            assert found["after"] == "cpu:0"

    def test_a_device_that_is_lost_is_one_error_on_all_ranks(self, there: Ranks) -> None:
        _loses_its_device(there)

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
        for (said,) in there.run("devices.told", kernels=False):
            assert said.startswith(
                "RuntimeWarning: gradients on meta are encoded on the CPU in every step: gradwire "
                "has no backend for meta"
            )
            assert "build_cuda()" in said

    def test_frames_that_go_over_gloo_all_the_same_are_said_once(self, there: Ranks) -> None:
        for (said,) in there.run("devices.told", kernels=True):
            assert said.startswith(
                "RuntimeWarning: frames of gradients on meta are copied to the CPU and sent over "
                "Gloo: the model's process group has no backend for meta"
            )


class TestWithoutKernels:
    """Tensors on the CPU that are copied to be encoded, and values that stay where they are."""

    def test_a_node_adds_up_where_gradients_are_and_copies_its_shares(
        self, kept: Callable[[int, str], Ranks]
    ) -> None:
        options: dict[str, Any] = {"device": "cpu", "exchange": "gather", "hierarchy": 2}
        expected = kept(4, "cpu").run("devices.crossed", **options)
        found = kept(4, "values").run("devices.crossed", **options)
        numel = 64 * 40 + 50 * 30 + 40 + 1200 + 1
        for one, other in zip(found, expected, strict=True):
            assert other["carried_by"] == "gloo"
            assert one["carried_by"] == "gloo between nodes, carrier inside"
            assert (one["averages"], one["state"]) == (other["averages"], other["state"])
            assert 0 < one["down"] < 0.6 * 4 * numel, "the mean of one share, and flags"
            assert 0 < one["up"] < 0.6 * 4 * numel
