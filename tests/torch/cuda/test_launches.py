"""How many kernels the encode of a bucket launches: each takes its time, however little it does."""

import ctypes
import itertools

import pytest
import torch

import gradwire
from gradwire.torch.backends.cuda.operators import EncodePlan
from gradwire.torch.backends.cuda.states import DeviceState, on_device
from tests.csrc.emulated.build import build
from tests.csrc.emulated.operators import emulate


@pytest.mark.parametrize(("numels", "most"), [([3000], 6), ([3000, 50, 2000], 7)])
@pytest.mark.parametrize("name", ["topk", "sidco", "dense"])
def test_an_encode_takes_seven_launches_at_most(name: str, numels: list[int], most: int) -> None:
    emulate()
    launches = ctypes.CDLL(str(build())).emulated_launches
    codec = gradwire.codec(name, **({} if name == "dense" else {"ratio": 0.01}))
    states = [DeviceState(codec, numel, name=f"w{at}") for at, numel in enumerate(numels)]
    bounds = list(itertools.accumulate(numels, initial=0))
    ends = [end for pair in itertools.pairwise(bounds) for end in pair]
    plan = EncodePlan([codec] * len(numels), ends, torch.empty(0))
    room = torch.empty(sum(plan.most), dtype=torch.uint8)
    gradient = torch.randn(sum(numels))
    for _ in range(2):
        before = launches()
        with on_device(states, gradient.device, plan.shared):
            plan.encode(gradient, plan.most, plan.shared, 1.0, room)
        assert launches() - before == most
