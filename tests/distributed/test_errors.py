"""A program may catch an error of `backward` and go on: DDP is whole, and replicas stay equal."""

import time
import traceback

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import gradwire
import gradwire.torch.ddp
from gradwire.torch.ddp import ExchangeError, GradientError
from tests.distributed.codecs import CODECS, SEVERAL
from tests.distributed.ranks import alike, on
from tests.distributed.scenarios.common import attached, batch, fingerprint, network

TOPK = CODECS["default"]
UNUSED = {"find_unused_parameters": True}


class Branched(nn.Module):
    """A network with a branch that the caller may leave out, and one that recomputes itself."""

    def __init__(self, recompute=False):
        super().__init__()
        self.trunk = network()
        self.branch = nn.Linear(16, 128)
        self.recompute = recompute

    def forward(self, x, branch=True):
        if self.recompute:
            x.requires_grad_()
            x = checkpoint(self.trunk, x, use_reentrant=True)
        else:
            x = self.trunk(x)
        return x.mean() + (self.branch(x).square().mean() if branch else 0.0)


def caught_again_and_again(rank, size, ddp, name, recompute=False, compiled=False, slow=False):
    """Every third step is bad on one rank; a branch is used on one rank only, where DDP allows."""
    unused = ddp.get("find_unused_parameters", False)
    prints, errors = [], []
    buckets = {} if compiled else SEVERAL
    model = DistributedDataParallel(Branched(recompute), **buckets, **ddp)
    called = torch.compile(model, backend="eager") if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with gradwire.torch.ddp.attach(called, CODECS[name]) as handle:
        if slow and rank == 0:
            slow_down(handle)
        for step in range(12):
            optimizer.zero_grad()
            bad = step % 3 == 1 and rank == (step // 3) % size
            try:
                if not ddp.get("static_graph"):  # DDP does not allow both
                    with model.no_sync():
                        called(batch(rank, 100 + step)[0], branch=True).backward()
                branch = not unused or step % size == rank
                loss = called(batch(rank, step)[0], branch=branch)
                (loss * (torch.nan if bad else 1.0)).backward()
            except GradientError as error:
                errors.append((step, error.rank))
                continue
            optimizer.step()
            prints.append(fingerprint(model))
        assert handle.step == 8, "only what counts is counted"
    assert errors == [(step, step // 3 % size) for step in (1, 4, 7, 10)]
    assert len(set(alike(prints))) == 8, "it trains on"


def slow_down(handle):
    """Let the receiving thread be late with each bucket."""
    exchange = handle._engine.exchange
    receive = exchange.receive

    def late(flight):
        time.sleep(0.02)
        receive(flight)

    exchange.receive = late


@pytest.mark.parametrize(
    ("ddp", "recompute", "compiled"),
    [
        ({}, False, False),
        ({**UNUSED, "gradient_as_bucket_view": True}, False, False),
        ({"static_graph": True}, True, False),
        pytest.param({}, False, True, marks=pytest.mark.full),
    ],
    ids=["default", "find-unused-bucket-view", "reentrant-static-graph", "compiled"],
)
@on("two")
def test_replicas_stay_equal_over_repeated_errors(rank, size, ddp, recompute, compiled):
    caught_again_and_again(rank, size, ddp, "senders", recompute, compiled)


@pytest.mark.full
@pytest.mark.parametrize("slow", [False, True], ids=["", "one-slow-rank"])
@pytest.mark.parametrize("name", ["leader", "reduce"])
@on("three")
def test_replicas_stay_equal_over_repeated_errors_in_sums(rank, size, name, slow):
    caught_again_and_again(rank, size, UNUSED, name, slow=slow)


@on("two")
def test_an_error_in_one_of_two_models_leaves_both_whole(rank):
    """Two models in one backward pass, the first of them bad: both must go on as before."""
    with (
        attached(network(1), TOPK, **SEVERAL) as (one, _),
        attached(network(2), TOPK, static_graph=True) as (two, _),
    ):
        optimizer = torch.optim.SGD([*one.parameters(), *two.parameters()], lr=0.05)
        for step in range(6):
            inputs, targets = batch(rank, step)
            optimizer.zero_grad()
            bad = step in (0, 3)
            first = one(inputs) * (torch.nan if bad and rank == 1 else 1.0)
            loss = (first - targets).square().mean() + (two(inputs) - targets).square().mean()
            if bad:
                with pytest.raises(GradientError):
                    loss.backward()
            else:
                loss.backward()
                optimizer.step()
        alike((fingerprint(one), fingerprint(two)))


@on("two")
def test_under_join_only_ranks_with_inputs_raise_and_may_go_on(rank):
    """A bad gradient where another rank is through with its inputs already."""
    errors = []
    with attached(network(), TOPK, **SEVERAL) as (model, _):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with model.join():
            for step in range(2 + 4 * rank):
                inputs, targets = batch(rank, step)
                optimizer.zero_grad()
                loss = mse_loss(model(inputs), targets) * (torch.inf if step == 3 else 1.0)
                try:
                    loss.backward()
                except GradientError as error:
                    errors.append((step, error.rank))
                    continue
                optimizer.step()
        assert errors == [[], [(3, 1)]][rank]
        alike(fingerprint(model))


@on("two")
def test_after_a_failed_exchange_the_model_works_again_without_gradwire(rank):
    """An exchange fails on one rank; the typed error each time; after detach() the model works."""
    model, reference = (
        DistributedDataParallel(Branched(), **SEVERAL, find_unused_parameters=True)
        for _ in range(2)
    )
    handle = gradwire.torch.ddp.attach(model, TOPK)
    model(batch(rank, 0)[0], branch=rank == 0).backward()
    if rank == 1:
        handle._parameters["trunk.3.weight"].state = None
    for step in range(1, 4):
        model.zero_grad()
        with pytest.raises(ExchangeError) as caught:
            model(batch(rank, step)[0], branch=step % 2 == rank).backward()
        assert caught.value.rank == 1
        assert model.module.trunk[0].weight.grad.isinf().all()
    handle.detach()
    for step in range(4, 7):
        model.zero_grad()
        model(batch(rank, step)[0], branch=step % 2 == rank).backward()
    reference(batch(rank, 6)[0], branch=rank == 0).backward()
    for one, other in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


@on("two")
def test_the_error_that_is_kept_keeps_no_frames_of_the_program():
    """Nor, with them, the batch of a caller."""
    with attached(network(), TOPK) as (model, handle):
        with pytest.raises(GradientError):
            model(torch.full((4, 32), torch.nan)).sum().backward()
        frames = traceback.walk_tb(handle.error.__traceback__)
        assert all(frame.f_code.co_filename != __file__ for frame, _ in frames)
