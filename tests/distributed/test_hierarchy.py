"""Four ranks as two nodes of two: dense inside a node, compressed between the nodes."""

import contextlib
import datetime
import json
import re
import threading
import warnings
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch
import gradwire.torch.ddp
from gradwire.exchange import AllReduce
from gradwire.memory import Residual
from gradwire.quantize import BFloat16
from gradwire.schedule import Accordion
from gradwire.torch.backends import Bucket
from gradwire.torch.backends.host import DeviceBucket
from gradwire.torch.ddp import ExchangeError, GradientError
from gradwire.torch.engine.step import BufferPool
from gradwire.torch.exchange import hierarchical
from gradwire.torch.transport import ProcessGroupChannel
from tests.deadlines import stretched
from tests.distributed.codecs import NARROW, SEVERAL
from tests.distributed.ranks import alike, on, together
from tests.distributed.scenarios.common import (
    Given,
    Run,
    Sums,
    attached,
    batch,
    bits_left,
    fingerprint,
    integers,
    network,
    residuals,
    train,
)

HEAD = 1024
"""Bytes of the message in which a rank tells its node how its share fared."""
SHAPES = {"a": (33, 40), "turned": (31, 50), "bias": (7,), "c": (1201,), "scalar": ()}
"""With rows that cannot be halved."""
NODES = {"hierarchy": 2}
OPTIONS = {**NODES, "min_numel": 64}
SUMMED = gradwire.randomk(ratio=0.1, exchange=AllReduce(), memory=Residual())


def odd():
    """A model of these shapes."""
    return Given(shapes=SHAPES)


def evens(rank, step):
    """Small even integers, so that the mean of two is exact."""
    return {name: 2 * each for name, each in integers(7, rank, step, shapes=SHAPES).items()}


def joined(handle):
    """The residuals of every node, put together from all shares."""
    every = together(handle.state_dict())
    shares = [every[rank][f"rank{rank}"]["residual"] for rank in range(4)]
    return [
        {name: np.concatenate([np.ravel(part[name]) for part in node]) for name in node[0]}
        for node in (shares[:2], shares[2:])
    ]


@on("four")
def test_what_sends_everything_trains_as_plain_ddp(rank):
    reference = DistributedDataParallel(network())
    train(reference, rank, range(6))
    for codec in (gradwire.topk(1.0), gradwire.dense()):
        with attached(network(), codec, options=NODES, **SEVERAL) as (model, _):
            train(model, rank, range(6))
        for one, other in zip(reference.parameters(), model.parameters(), strict=True):
            assert (one - other).abs().max() < 1e-6


@on("four")
def test_replicas_are_alike_by_every_exchange_and_in_all_nodes(rank):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("node", "share"))
    groups, prints = (mesh.get_group("share"), mesh.get_group("node")), []
    for codec, hierarchy in (
        (gradwire.topk(0.05), mesh),
        (gradwire.topk(0.05), 2),
        (gradwire.randomk(0.05), groups),
        (gradwire.scalecom(0.05), 4),
        (gradwire.onebit(), 2),
        (gradwire.topk(0.05), 1),
    ):
        options = {"hierarchy": hierarchy}
        with attached(network(), codec, options=options, **SEVERAL) as (model, handle):
            train(model, rank, range(6))
            prints.append(alike(fingerprint(model)))
            assert any(each.any() for each in residuals(handle).values())
    assert prints[0] == prints[1], "by a mesh and by a number"
    assert len(set(prints)) == len(prints) - 1


@on("four")
def test_every_entry_is_exchanged_as_the_model_says(rank, size):
    """Rounding to bfloat16 treats every entry by itself: compare with torch, bit for bit."""
    codec = gradwire.dense(quantize=BFloat16(), memory=Residual())
    left = [{name: torch.zeros(shape) for name, shape in SHAPES.items()} for _ in range(2)]
    with attached(odd(), codec, options=OPTIONS, **SEVERAL) as (model, handle):
        for step in range(6):
            model.zero_grad()
            model({name: each / 7 for name, each in evens(rank, step).items()}).backward()
            given = [evens(each, step) for each in range(size)]
            for name, parameter in model.module.named_parameters():
                sent = []
                for node in range(2):
                    mean = (given[2 * node][name] / 7 + given[2 * node + 1][name] / 7) / 2
                    total = left[node][name] + mean
                    out = total if mean.numel() < 64 else total.bfloat16().float()
                    left[node][name] = total - out
                    sent.append(out)
                assert torch.equal(parameter.grad, (sent[0] + sent[1]) / 2), (step, name)
        for node, residual in enumerate(joined(handle)):
            assert sorted(residual) == ["a", "c", "turned"]
            for name, values in residual.items():
                np.testing.assert_array_equal(values, left[node][name].numpy().ravel())


@on("four")
def test_each_rank_sends_the_bytes_of_its_share_and_reports_them(rank):
    counted = {"inside": 0, "between": 0}

    def spy(kind):
        real = getattr(ProcessGroupChannel, kind)

        def call(channel, *tensors):
            ranks = dist.get_process_group_ranks(channel.group)
            if len(ranks) == 2:
                inside = ranks[0] // 2 == ranks[1] // 2
                nbytes = tensors[-1].nbytes // (2 if kind == "all_to_all" else 1)
                counted["inside" if inside else "between"] += nbytes
            return real(channel, *tensors)

        return mock.patch.object(ProcessGroupChannel, kind, call)

    with attached(odd(), gradwire.topk(ratio=0.05), options=OPTIONS) as (model, handle):
        for step in range(3):
            model(evens(rank, step)).backward()
        handle.report(reset=True)
        with spy("all_to_all"), spy("all_gather"):
            for step in range(3, 5):
                model(evens(rank, step)).backward()
            report = handle.report()
    shares = [0, 0]
    for name, shape in SHAPES.items():
        rows = shape[0] if shape else 1
        numel = rows * (shape[1] if len(shape) > 1 else 1)
        if name in ("turned", "scalar"):  # whole, and to the second rank
            shares[1] += numel
        else:
            shares[0] += numel // rows * -(-rows // 2)
            shares[1] += numel // rows * (rows // 2)
    room, steps = 4 * max(shares), report.steps
    assert (steps, report.collectives) == (2, 2)
    assert counted["inside"] == steps * (room + HEAD + room) == steps * report.node_wire_bytes
    assert counted["between"] == steps * report.wire_bytes < steps * shares[rank % 2] * 4 / 4
    assert "inside the node" in str(report)


@pytest.mark.parametrize("codec", [gradwire.topk(0.1), SUMMED], ids=["all-gather", "all-reduce"])
@on("four")
def test_an_infinity_on_one_rank_leaves_no_trace_on_any(rank, codec):
    with attached(odd(), codec, options=OPTIONS) as (model, handle):
        model(evens(rank, 0)).backward()
        before, gradients = bits_left(handle), evens(rank, 1)
        if rank == 3:
            gradients["c"][1000] = torch.inf  # in the second share: its place in the parameter
        model.zero_grad()
        with pytest.raises(GradientError) as caught:
            model(gradients).backward()
        error = caught.value
        assert (error.name, error.count, error.first, error.rank) == ("c", 1, 1000, 3)
        assert before == bits_left(handle)
        assert handle.step == 1
        model.zero_grad()
        model(evens(rank, 2)).backward()
        alike(model.module.c.grad.sum().item())
        handle.discard()
        assert before == bits_left(handle)


@on("four")
def test_a_loss_scaler_skips_a_step_on_all_ranks(rank):
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    options = {**NODES, "grad_scaler": scaler}
    with attached(network(), gradwire.topk(0.1), options=options, **SEVERAL) as (model, handle):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for step in range(5):
            inputs, targets = batch(rank, step)
            optimizer.zero_grad()
            factor = torch.inf if step == 3 and rank == 1 else 1.0
            scaler.scale(mse_loss(model(inputs), targets) * factor).backward()
            scaler.step(optimizer)
            scaler.update()
        assert (scaler.get_scale(), handle.step) == (32.0, 4)
        alike(fingerprint(model))


@on("four")
def test_memory_is_marked_in_the_stream_that_has_used_it(rank):
    """Each mark of memory is taken in the receiving thread's stream."""
    inside, found = threading.local(), []

    @contextlib.contextmanager
    def receiving(bucket):
        inside.depth = getattr(inside, "depth", 0) + 1
        yield
        inside.depth -= 1

    def used(bucket, *tensors):
        found.append(getattr(inside, "depth", 0) > 0)

    with contextlib.ExitStack() as stack:
        for kind in (Bucket, DeviceBucket):
            stack.enter_context(mock.patch.object(kind, "receiving", receiving))
            stack.enter_context(mock.patch.object(kind, "used", used))
        for memory in (Residual(), NARROW):
            with attached(odd(), gradwire.topk(0.1, memory=memory), options=OPTIONS) as (model, _):
                model(evens(rank, 0)).backward()
    assert len(found) > 4
    assert all(found)


OWNERS = {"take": (BufferPool,), "pack": (Bucket, DeviceBucket), "divide": (hierarchical,)}


@pytest.mark.parametrize("act", OWNERS)
@pytest.mark.parametrize("codec", [gradwire.topk(0.1), SUMMED], ids=["gathered", "summed"])
@on("four")
def test_a_share_that_one_rank_has_no_memory_for_is_an_error_of_all(rank, codec, act):
    trouble = mock.Mock(side_effect=MemoryError("no memory for a share"))
    with attached(odd(), codec, options=OPTIONS) as (model, handle):
        model(evens(rank, 0)).backward()
        before = bits_left(handle)
        with contextlib.ExitStack() as stack:
            for owner in OWNERS[act] if rank == 1 else ():
                stack.enter_context(mock.patch.object(owner, act, trouble))
            with pytest.raises(ExchangeError, match="MemoryError: no memory for a share"):
                model(evens(rank, 1)).backward()
        assert before == bits_left(handle)


def adam_over(hierarchy, seed=0):
    """A network with Adam on the nodes."""
    return Run(gradwire.adam(ratio=0.05), seed=seed, min_numel=64, hierarchy=hierarchy)


def masses(states, shares):
    """What all ranks are still to send, by name."""
    return {
        name: shares * sum(float(each["residual"][name].double().sum()) for each in states.values())
        for name in states["rank0"]["residual"]
    }


@on("four")
def test_resume_is_bit_for_bit_and_other_nodes_take_over(rank):
    """Train 8 steps; or 5, save, start again, and 3. Then load with other nodes."""
    with adam_over(2) as run:
        run.train(rank, range(5))
        halves, everything = run.save(), run.handle.gathered_state_dict(None)
        run.train(rank, range(5, 8))
        whole = run.state()
        alike(whole[0])
    for gathered in (False, True):
        with adam_over(2, seed=5) as run:
            run.load(halves)
            if gathered:
                run.handle.load_state_dict(everything)
            run.train(rank, range(5, 8))
            assert run.state() == whole
    expected = pytest.approx(masses(everything, 2), rel=1e-4, abs=1e-4)
    for shares in (1, 4):
        with adam_over(shares) as run:
            run.handle.load_state_dict(everything)
            assert masses(run.handle.gathered_state_dict(None), shares) == expected
    said = "every rank has its own residual"
    with adam_over(2) as run, pytest.raises(ValueError, match=said):
        run.handle.load_state_dict({"rank0": everything["rank0"]})


@on("four")
def test_what_is_no_hierarchy_is_refused_on_every_rank(rank):
    warnings.simplefilter("ignore")
    options = {"timeout": datetime.timedelta(seconds=stretched(9))}
    model = DistributedDataParallel(network())
    sparse = DistributedDataParallel(nn.EmbeddingBag(64, 32, sparse=True))
    for module, hierarchy, said in (
        (model, 3, "4 ranks cannot be divided into nodes of 3"),
        (model, "rack", "hierarchy= takes"),
        (model, "node", "LOCAL_WORLD_SIZE"),
        (model, init_device_mesh("cpu", (4,)), "of shape (4,)"),
        (model, True, "hierarchy= takes"),
        (model, 2 if rank else 4, "with different hierarchy"),
        (sparse, 2, "is sparse"),
    ):
        with pytest.raises((TypeError, ValueError), match=re.escape(said)):
            gradwire.torch.ddp.attach(module, gradwire.topk(0.1), hierarchy=hierarchy, **options)
    with gradwire.torch.ddp.attach(model, gradwire.topk(0.1), hierarchy=2) as handle:
        with pytest.raises(ValueError, match=r"regroup\(\) cannot change the ranks per node"):
            handle.regroup(model.process_group)
        with pytest.raises(ValueError, match=r"gathered_state_dict\(\)"):
            handle.merged_state_dict()
        train(model, rank, range(2))
        assert handle.step == 2


# Modes of DDP ----------------------------------------------------------------------------------


def check_sums(sums, handle, rank):
    """What all ranks gave was applied, or is still to be sent by the nodes: exactly."""
    nodes = joined(handle)
    left = {name: 2 * (nodes[0][name] + nodes[1][name].astype(float)) for name in nodes[0]}
    assert any(each.any() for each in left.values())
    sums.check(left if rank == 0 else {})


@pytest.mark.parametrize("ddp", [{}, {"static_graph": True}], ids=str)
@on("four")
def test_accumulated_gradients_of_a_node_are_exchanged_once(rank, ddp):
    """Every third pass is exchanged; with a static graph, each of them."""
    sums = Sums()
    with attached(odd(), gradwire.topk(0.05), options=OPTIONS, **SEVERAL, **ddp) as (model, handle):
        for step in range(6):
            quiet = not ddp and step % 3 < 2
            with model.no_sync() if quiet else contextlib.nullcontext():
                model(sums.give(evens(rank, step))).backward()
            if not quiet:
                sums.take(model.module)
                model.zero_grad()
        check_sums(sums, handle, rank)
        assert handle.step == (6 if ddp else 2)


@on("four")
def test_a_parameter_that_no_rank_uses_keeps_the_residuals_of_its_shares(rank, size):
    """Use `a` everywhere, then nowhere, then on the last rank only, then everywhere."""
    sums, left, none = Sums(), [], []
    options = {"options": OPTIONS, "find_unused_parameters": True}
    with attached(odd(), gradwire.topk(0.05), **options) as (model, handle):
        for step in range(5):
            gradients = evens(rank, step)
            if step in (1, 2) or (step == 3 and rank != size - 1):
                del gradients["a"]
            model(sums.give(gradients)).backward()
            none.append(model.module.a.grad is None)
            sums.take(model.module)
            model.zero_grad()
            left.append([each["a"].tobytes() for each in joined(handle)])
        check_sums(sums, handle, rank)
    assert none == [False, True, True, False, False]
    assert left[0] == left[1] == left[2]
    assert left[3] != left[0], "one rank that uses it is enough"


@on("four")
def test_join_goes_on_until_the_last_rank_of_any_node_has_no_inputs(rank):
    """Rank r has 2 + r batches; the nodes go on with what is left."""
    sums = Sums()
    with attached(odd(), gradwire.topk(0.05), options=OPTIONS, **SEVERAL) as (model, handle):
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with model.join():
            for step in range(2 + rank):
                optimizer.zero_grad()
                model(sums.give(evens(rank, step))).backward()
                optimizer.step()
        for name, parameter in model.module.named_parameters():
            sums.applied[name] = -4 * parameter.detach().double().numpy().ravel()
        check_sums(sums, handle, rank)
        alike(fingerprint(model))


# What is kept of a share -------------------------------------------------------------------------


@on("four")
def test_accordion_decides_by_the_norms_of_all_shares_of_the_first_node(rank):
    """Save within an epoch, and go on with other nodes."""
    schedule, looks = Accordion(0.5, 0.05, eta=0.5, interval=1), []
    tripled = (1.0, 1.0, 3.0, 3.0, 3.0)  # by epoch: the second half of `a`, beside ones
    options, codec = {**OPTIONS, "schedule": schedule}, gradwire.topk(0.05)

    def look(handle):
        (saved,) = handle.state_dict().values()
        position = json.loads(saved["about"])["schedule"]
        looks.append((position["norms"], position["critical"]))

    with attached(odd(), codec, options=options, **SEVERAL) as (model, handle):
        for epoch, factor in enumerate(tripled):
            handle.epoch(epoch)
            look(handle)
            # Only the mean of the node counts: that of 0.5 and 1.5; and only the first node.
            own = (0.5, 1.5, 100.0, 100.0)[rank]
            for _ in range(2):
                gradients = {name: torch.full(shape, own) for name, shape in SHAPES.items()}
                gradients["a"][17:] *= factor
                model.zero_grad()
                model(gradients).backward()
        (mine,) = handle.state_dict().values()
        assert sorted(mine["measured"]) == (["a", "c", "turned"] if rank < 2 else [])
        everything = handle.gathered_state_dict(None)
        handle.epoch(5)
        look(handle)
    for shares in (1, 2, 4):
        with attached(odd(), codec, options=options | {"hierarchy": shares}) as (_, handle):
            handle.load_state_dict(everything)
            handle.epoch(5)
            look(handle)
    norms, critical = zip(*alike(looks), strict=True)
    # The second half of `a` is three times as large in epoch 2: decided when that has ended.
    half, rest = 17 * 40, 16 * 40  # of two steps, each a mean of 1
    of_a = [2 * (half + rest * factor**2) ** 0.5 for factor in tripled]
    assert [each["a"] for each in norms[1:6]] == pytest.approx(of_a, rel=1e-12)
    assert [each["turned"] for each in norms[1:6]] == [2 * (31 * 50) ** 0.5] * 5
    assert [each["a"] for each in critical[:6]] == [True, True, False, True, False, False]
    assert [each["turned"] for each in critical[2:6]] == [False] * 4
    # Saved within epoch 4, and ended by other nodes: the same norms.
    for after in norms[6:]:
        assert after == pytest.approx(norms[5], rel=1e-12)
