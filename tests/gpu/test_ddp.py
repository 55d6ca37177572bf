"""The suite of devices on GPUs: two processes over Gloo share one, and NCCL takes one each.

One process alone may have NCCL as well, with itself for all ranks.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from gradwire.torch.exchange.dense import divide
from tests.distributed.device_suite import CODECS, DeviceSuite, crossed, given
from tests.distributed.ranks import Nursery, Ranks
from tests.gpu.place import DEVICE, EMULATED, GPU, kernels

if not GPU:
    pytest.skip("no GPU here", allow_module_level=True)

KERNELS = kernels()
MODULE = "gradwire.torch.backends." + ("cuda.buckets" if KERNELS else "host")
NCCL = "carrier" if EMULATED else "nccl"
BY_NCCL = NCCL if KERNELS else "gloo"
"""What carries frames where NCCL is there: only kernels leave them on the device."""


@pytest.fixture(scope="module")
def gloo(nursery: Nursery) -> Iterator[Ranks]:
    """Two ranks with DDP on Gloo."""
    yield from _ranks(nursery, "gloo")


@pytest.fixture(scope="module")
def nccl(nursery: Nursery) -> Iterator[Ranks]:
    """Two ranks with DDP on NCCL."""
    yield from _ranks(nursery, NCCL)


def _ranks(nursery: Nursery, transport: str) -> Iterator[Ranks]:
    ranks = _made(nursery, 2, transport)
    yield ranks
    ranks.stop()


def _made(nursery: Nursery, ranks: int, transport: str) -> Ranks:
    backend = "cuda" if EMULATED else "cpu"
    return Ranks(nursery, ranks, timeout=120.0, backend=backend, transport=transport)


class TestGloo(DeviceSuite):
    """Two processes with the process group of DDP on Gloo; they may share a GPU."""

    device = DEVICE
    module = MODULE

    @pytest.fixture
    def there(self, gloo: Ranks) -> Ranks:
        """The ranks."""
        return gloo


@pytest.mark.skipif(
    not EMULATED and torch.cuda.device_count() < 2, reason="NCCL takes a GPU per process"
)
class TestNccl(DeviceSuite):
    """Two processes with the process group of DDP on NCCL."""

    device = DEVICE
    module = MODULE
    carried_by = BY_NCCL

    @pytest.fixture
    def there(self, nccl: Ranks) -> Ranks:
        """The ranks."""
        return nccl


class TestNcclAlone:
    """One process, whose frames go through NCCL to itself."""

    @pytest.fixture(scope="class")
    def alone(self, nursery: Nursery) -> Iterator[tuple[Ranks, Ranks]]:
        """A rank with NCCL, and one on the CPU to compare with."""
        made = _made(nursery, 1, NCCL), Ranks(nursery, 1)
        yield made
        for each in made:
            each.stop()

    @pytest.mark.parametrize("half", [False, True], ids=["float32", "with-halves"])
    @pytest.mark.parametrize("exchange", ["gather", "reduce", "dense", "leader"])
    def test_averages_and_states_are_those_of_the_cpu_bit_for_bit(
        self, alone: tuple[Ranks, Ranks], exchange: str, half: bool
    ) -> None:
        options: dict[str, Any] = {"codec": CODECS[exchange], "ddp": {}, "half": half}
        (found,), (expected,) = (
            ranks.run(given, device=device, **options)
            for ranks, device in zip(alone, (DEVICE, "cpu"), strict=True)
        )
        assert found["carried_by"] == BY_NCCL
        assert found["averages"] == expected["averages"]
        assert found["state"] == expected["state"]

    @pytest.mark.skipif(not KERNELS, reason="the CUDA extension is not there")
    @pytest.mark.parametrize("exchange", ["gather", "dense"])
    def test_no_frame_and_no_value_goes_by_the_host(
        self, alone: tuple[Ranks, Ranks], exchange: str
    ) -> None:
        (found,) = alone[0].run(crossed, device=DEVICE, codec=CODECS[exchange])
        assert 0 < found["up"] <= 1100
        assert 0 < found["down"] <= 1024 + 600


def test_means_are_rounded_as_on_the_cpu() -> None:
    total = torch.randn(10_000, generator=torch.Generator().manual_seed(5))
    assert torch.equal(divide(total.to(DEVICE), 3).cpu(), divide(total, 3))
