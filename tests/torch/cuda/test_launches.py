"""How many kernels the encode of a bucket launches: each takes its time, however little it does."""

import ctypes

import pytest
import torch

import gradwire
from benches.gpu.measure import contestant
from tests.csrc.emulated.build import build
from tests.csrc.emulated.operators import emulate


@pytest.mark.parametrize(("numels", "most"), [([3000], 6), ([3000, 50, 2000], 7)])
@pytest.mark.parametrize("name", ["topk", "sidco", "dense"])
def test_an_encode_takes_seven_launches_at_most(name: str, numels: list[int], most: int) -> None:
    emulate()
    launches = ctypes.CDLL(str(build())).emulated_launches
    options = {} if name == "dense" else {"ratio": 0.01}
    kind = contestant(name, "", lambda _: getattr(gradwire, name)(**options))
    encoder = kind(sum(numels), 0.01, "cpu", numels)
    gradient = torch.randn(sum(numels))
    for _ in range(2):
        before = launches()
        encoder.encode(gradient)
        assert launches() - before == most
