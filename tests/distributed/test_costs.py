"""Links that are measured on process groups of real processes, and bytes that these send."""

import copy
import itertools
import math
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.cost import Link, Network, Payload, calibrate, compressed, simulate
from gradwire.cost.exchanges import RingAllReduce
from gradwire.quantize import BFloat16
from gradwire.torch import cost
from tests.distributed.codecs import CODECS, OWNED
from tests.distributed.ranks import alike, on
from tests.distributed.scenarios.common import attached, gradients_of

SLOW, SMALL, SIDE, LAYERS = 0.2, 0.1, 256, 3
SENT = {
    "topk": gradwire.topk(ratio=0.05),
    "onebit": gradwire.onebit(),
    "dense": gradwire.dense(exchange=gradwire.exchange.AllReduce()),
    "randomk": gradwire.randomk(ratio=0.1),
    "scalecom": gradwire.scalecom(ratio=0.05),
    "half": gradwire.scalecom(ratio=0.05, quantize=BFloat16()),
    "scattered": CODECS["scattered"],
    "quantized": CODECS["quantized"],
    "levels": OWNED["qsgd"],
}
"""A codec for each exchange, and one whose values have 16 bits."""


@on("two")
def test_all_ranks_get_the_same_link_and_a_group_of_one_has_none(rank, size):
    found = cost.measure_link(seconds=0.05)
    again = cost.measure_link(dist.new_group(list(range(size))), seconds=0.05)
    for each in alike((found, again)):
        assert 0 < each.bandwidth < math.inf
        assert each.latency >= 0
        assert each.overhead + each.processor > 0
    assert simulate(RingAllReduce(), Payload.dense(1000), Network(2, found)).seconds > 0
    alone = [dist.new_group([each]) for each in range(size)][rank]
    for group, seconds, said in (
        (alone, 1.0, "measuring a link needs two ranks, and this process group has one"),
        (None, 0.0, "seconds must be above 0, got 0"),
        (None, -1.0, "seconds must be finite and not negative, got -1.0"),
    ):
        with pytest.raises(ValueError, match=f"^{said}$"):
            cost.measure_link(group, seconds=seconds)


def bytes_sent(rank, size):
    """Return the bytes that a rank sends per step with each codec, and those of plain DDP."""
    found = {}
    for name, codec in SENT.items():
        torch.manual_seed(0)
        layers = [nn.Linear(SIDE, SIDE, bias=False) for _ in range(LAYERS)]
        with attached(nn.Sequential(*layers), codec) as (model, handle):
            for step in range(10):
                if step == 6:  # limits of slots have settled
                    handle.metrics(reset=True)
                torch.manual_seed(size * step + rank)
                model(torch.randn(16, SIDE)).square().mean().backward()
            figures = handle.metrics()
            found[name] = figures["wire_bytes"], figures["dense_wire_bytes"]
    return found


def test_ranks_send_the_bytes_that_the_simulator_says(ranks):
    calibration = calibrate(SENT, seconds=0.01, numels=(1 << 12, SIDE**2), cold=False)
    sent = ranks.run(bytes_sent)
    network = Network(len(sent), Link(1e9))
    numel = LAYERS * SIDE**2
    dense = simulate(RingAllReduce(), Payload.dense(numel), network).sent
    for name in SENT:
        method = compressed(name, calibration)
        found = simulate(method.exchange, method.payload(numel, LAYERS), network).sent
        mean = sum(each[name][0] for each in sent) / len(sent)
        assert found == pytest.approx(mean, rel=0.06), name
        assert dense == sent[0][name][1]


@on("two")
def test_a_workload_has_the_buckets_that_a_hook_gets():
    """Measure a model with a codec; compare with the buckets that its hook would get."""
    shapes = [(64, 40), (40, 300), (300, 300), (300, 300), (300, 8)]
    torch.manual_seed(0)
    layers, x = nn.Sequential(*[nn.Linear(*shape) for shape in shapes]), torch.randn(5, 64)
    seen, progress = [], []

    def hook(state, bucket):
        seen.append(bucket.buffer().numel())
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    hooked = DistributedDataParallel(copy.deepcopy(layers), bucket_cap_mb=SMALL)
    hooked.register_comm_hook(None, hook)
    for _ in range(3):
        seen.clear()
        hooked(x).sum().backward()

    with attached(layers, gradwire.onebit(), bucket_cap_mb=SMALL) as (model, handle):

        def step():
            model(x).sum().backward()

        step()
        before, steps = gradients_of(model.module), handle.step
        found = cost.measure_workload(
            model,
            step,
            steps=3,
            optimizer=1.0,
            progress=lambda *what: progress.append(what),
        )
        for name, gradient in gradients_of(model.module).items():
            np.testing.assert_array_equal(gradient, before[name])
        model.zero_grad()
        step()  # the hooks are gone, and steps are exchanged again
        assert handle.step == steps + 1
        alone = cost.measure_workload(layers, lambda: layers(x).sum().backward(), steps=1)
        for other, said in (
            (hook, "model must be a torch.nn.Module, got function"),
            (nn.ReLU(), "model has no parameter with requires_grad: no gradient to exchange"),
            (layers, "step made no forward pass: call the model that is measured"),
        ):
            with pytest.raises((TypeError, ValueError), match=f"^{said}$"):
                cost.measure_workload(other, lambda: None)
    assert alike(found).buckets == seen
    assert len(found.buckets) > 2
    assert found.tensors == alone.tensors == 10
    assert found.shared
    assert 0 < found.ready[0] < found.ready[-1] == found.backward
    assert found.other >= 1.0
    assert alone.buckets == [found.numel]  # without DDP, in one process, with DDP's own sizes
    assert progress[0] == ("step 1 of 4", 0.0)
    assert progress[-2:] == [("step 4 of 4", 0.75), ("done", 1.0)]


@on("two")
def test_a_step_takes_as_long_as_its_slowest_rank(rank, size):
    """Ranks are slow one after the other."""
    with attached(nn.Linear(4, 4), gradwire.onebit()) as (model, _):
        made = itertools.count()

        def step():
            if next(made) % size == rank:
                time.sleep(SLOW)
            model(torch.ones(4)).sum().backward()

        assert alike(cost.measure_workload(model, step, steps=3)).compute >= SLOW
