"""Simulated ranks of benches/accuracy train as real ranks do."""

import contextlib

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW

import gradwire
import gradwire.torch.ddp
from benches.accuracy import methods
from benches.accuracy import run as running
from benches.harness.tasks import share_of_rate
from gradwire.exchange import QuantizedAllReduce, ReduceScatter
from gradwire.memory import Residual
from gradwire.schedule import Constant, WarmUp
from tests.benches.accuracy.toy import Toy

STEPS, RATE = 30, 0.01
CASES = [  # codec, optimizer
    (None, "sgd"),
    (None, "adamw"),
    (gradwire.topk(0.01), "sgd"),
    (gradwire.topk(0.01), "adamw"),
    (gradwire.onebit(), "adamw"),
    (gradwire.qsgd(), "adamw"),
    (gradwire.dgc(0.01), "sgd"),
    (gradwire.adam(0.01), "adamw"),
    (gradwire.adam_onebit(), "adamw"),
    (gradwire.scalecom(0.02), "adamw"),
    (gradwire.randomk(0.1, memory=Residual(decay=0.9)), "sgd"),
    (gradwire.sparseloco(k=64, exchange=ReduceScatter()), "adamw"),
    (gradwire.onebit(exchange=QuantizedAllReduce()), "adamw"),
    (gradwire.qsgd(exchange=QuantizedAllReduce()), "sgd"),
    (gradwire.adam_onebit(exchange=QuantizedAllReduce()), "adamw"),
]


@pytest.fixture(autouse=True)
def one_thread():
    """As the ranks have it: sums depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def real(rank, size, codec, optimizer, schedule):
    """Train with DDP; return parameters and buffers by name, bytes per step, and measures."""
    task = Toy()
    model = DistributedDataParallel(task.model(0))
    if optimizer == "adamw":
        made = AdamW(model.parameters(), betas=(0.9, 0.999), weight_decay=0.01, fused=True)
    else:
        made = SGD(model.parameters(), lr=RATE, momentum=0.9)
    handle, nbytes = None, None
    with contextlib.ExitStack() as stack:
        if codec is not None:
            options = {"optimizer": made, "schedule": schedule or Constant()}
            handle = stack.enter_context(gradwire.torch.ddp.attach(model, codec, **options))
        batches = task.batches(rank, size, 0)
        for step in range(STEPS):
            if handle is not None and step * running.EPOCHS % STEPS == 0:
                handle.epoch(step * running.EPOCHS // STEPS)
            for group in made.param_groups:
                group["lr"] = RATE * share_of_rate(step, STEPS)
            made.zero_grad()
            task.loss(model, next(batches)).backward()
            made.step()
        if handle is not None:
            nbytes = handle.report().wire_bytes
    state = {name: each.detach().numpy() for name, each in model.module.state_dict().items()}
    model.module.eval()
    with torch.no_grad():
        return state, nbytes, task.evaluate(model.module)


class Remembering(Toy):
    """Keeps the model."""

    def model(self, seed):
        self.last = super().model(seed)
        return self.last


def compare(two, codec, optimizer, schedule=None):
    """Train twice."""
    ran = two.run(real, codec=codec, optimizer=optimizer, schedule=schedule)
    state, nbytes, measures = ran[0]
    kind = methods.ADAMW if optimizer == "adamw" else methods.SGD
    method, task = methods.Method(codec, optimizer, kind, schedule), Remembering()
    curve = running.run(task, method, RATE, ranks=2, seed=0, steps=STEPS, evaluations=1)
    simulated = {name: each.numpy() for name, each in task.last.state_dict().items()}
    for name, value in state.items():
        if value.dtype == np.float32:  # not the count of batches, which every rank adds to
            np.testing.assert_array_equal(simulated[name], value, err_msg=name)
    if nbytes is not None:
        assert curve.bytes_per_step == pytest.approx(nbytes, abs=512)  # heads of more buckets
    assert curve.points == [{"step": STEPS, **measures}]


@pytest.mark.full
@pytest.mark.parametrize(("codec", "optimizer"), CASES)
def test_simulated_ranks_equal_real_ones_bit_for_bit(two, codec, optimizer):
    compare(two, codec, optimizer)


def test_a_schedule_is_simulated_as_well(two):
    compare(two, gradwire.adam(0.01), "adamw", WarmUp((0.3, 0.1)))
