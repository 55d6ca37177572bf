"""In the steady state a compressed step takes no memory that is new to the process."""

import contextlib
import resource
import sys

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

import gradwire
import gradwire.torch.ddp
from tests.distributed.ranks import on

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the kernel counts faults otherwise"
)

TOLERANCE = 32
"""1 MB of gradients or of residuals, taken anew, would be 256 faults a step. On a busy machine as
on a quiet one, a step takes 2 to 5, with compression and without.
"""
STEPS, COUNTED = 40, 10


def faults_of_a_step(rank, codec=None):
    """Page faults of a step in the steady state (the least of some), without a codec of DDP's.

    The least, because what is taken anew is taken in each step. What grows for once, such as a
    frame longer than any before, costs one step some hundreds, and so does the C library, which
    gives memory back to the system in some steps and not in others. Gradients are zeroed in place
    because a plain DDP step takes new memory in about every third step otherwise.
    """
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256))
    model, faults = DistributedDataParallel(module), []
    optimizer = AdamW(module.parameters(), lr=1e-3)
    random = torch.Generator().manual_seed(rank)
    inputs, targets = (torch.randn(32, 256, generator=random) for _ in range(2))
    with contextlib.ExitStack() as stack:
        if codec is not None:
            handle = gradwire.torch.ddp.attach(model, codec, optimizer=optimizer)
            stack.enter_context(handle)
        for _ in range(STEPS + COUNTED):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return min(faults[STEPS:])


@pytest.mark.parametrize(
    "codec",
    [
        gradwire.adam(),
        pytest.param(gradwire.topk(0.01), marks=pytest.mark.full),
        pytest.param(gradwire.sidco(0.01), marks=pytest.mark.full),
    ],
    ids=["adam", "topk", "sidco"],
)
@on("expendable")
def test_a_compressed_step_takes_no_page_fault_beyond_those_of_ddp(rank, codec):
    first, compressed, last = (faults_of_a_step(rank, each) for each in (None, codec, None))
    assert compressed <= max(first, last) + TOLERANCE, (first, compressed, last)
