"""Failures are errors that can be read, on every rank, in time; never a hang."""

import pickle
import re
import time
from datetime import timedelta
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire.torch.ddp import ExchangeError
from gradwire.torch.engine.step import Step
from gradwire.torch.transport import process_group as groups
from tests.deadlines import stretched
from tests.distributed.codecs import CODECS, SEVERAL
from tests.distributed.ranks import alike, on
from tests.distributed.scenarios.common import (
    Given,
    attached,
    bits_left,
    fingerprint,
    integers,
    network,
    train,
)
from tests.distributed.troubles import Troubled, die, fail, patience, stay, told

pytestmark = pytest.mark.waits  # for ranks that died

LIMIT = 12.0
"""Timeouts of the group after which a rank hangs that waits for another, which stays for 20."""
TOPK = CODECS["default"]


def one_rank_fails(rank, how, name="default"):
    """After two good steps rank 1 fails; check what the other one sees, and when."""
    module = Troubled()
    model = DistributedDataParallel(module, **SEVERAL)
    handle = gradwire.torch.ddp.attach(model, CODECS[name])
    train(model, rank, range(2))
    if rank == 1:
        if how == "before the hook":
            stay()
        module.trouble = {"raises": fail, "dies": die}.get(how, module.trouble)
        try:
            train(model, rank, range(2, 3))
        finally:
            stay()
    start = time.monotonic()
    said = "another rank has stopped" if how == "dies" else "was not exchanged"
    with pytest.raises(ExchangeError, match=said):
        train(model, rank, range(2, 3))
    patiences = timedelta(seconds=time.monotonic() - start) / patience()
    assert patiences < (0.5 if how == "dies" else LIMIT)
    assert how != "dies" or handle.error.rank == 1
    with pytest.raises(ExchangeError, match="stopped after an earlier error"):
        train(model, rank, range(3, 4))
    told().set("seen", "")
    assert isinstance(handle.error, ExchangeError)
    assert "broken" in repr(handle)


@pytest.mark.full
@pytest.mark.parametrize("name", ["default", "leader", "reduce"])
@pytest.mark.parametrize("how", ["before the hook", "raises"])
def test_a_rank_that_stops_does_not_hang_the_others(short_lived, how, name):
    (kind, seen), _ = short_lived.try_run(one_rank_fails, how=how, name=name)
    assert kind == "returned", seen


@pytest.mark.parametrize(
    "name", ["default", *(pytest.param(n, marks=pytest.mark.full) for n in ("leader", "reduce"))]
)
def test_a_rank_that_dies_is_noticed_at_once(expendable, name):
    (kind, seen), other = expendable.try_run(one_rank_fails, how="dies", name=name)
    assert other[0] == "died"
    assert kind == "returned", seen


def one_rank_is_absent(rank, attaches):
    """Rank 1 ends between two steps, or never comes to attach; check what the other one sees."""
    model = DistributedDataParallel(network(), **SEVERAL)
    if rank == 1 and not attaches:
        stay()

    def go():
        gradwire.torch.ddp.attach(model, TOPK)
        train(model, rank, range(2))
        if rank == 1:
            die()
        train(model, rank, range(2, 4))

    with pytest.raises(ExchangeError) as caught:
        go()
    told().set("seen", "")
    text = str(caught.value)
    if attaches:
        assert "rank 1 has failed, has ended or did not take part" in text
        assert "on this rank" not in text
        assert caught.value.rank == pickle.loads(pickle.dumps(caught.value)).rank == 1
    else:
        assert "another rank did not call attach() in time" in text  # a file says no more
        assert "network" not in text


def test_a_rank_that_ends_between_steps_is_named(expendable):
    (kind, seen), other = expendable.try_run(one_rank_is_absent, attaches=True)
    assert other[0] == "died"
    assert kind == "returned", seen


def test_a_rank_that_never_attaches_is_told_as_such(short_lived):
    (kind, seen), _ = short_lived.try_run(one_rank_is_absent, attaches=False)
    assert kind == "returned", seen


def emergency(rank, how, folder):
    """Rank 1 fails in its third step, the other one therefore as well; both save what they have."""
    module = Troubled()
    model = DistributedDataParallel(module, **SEVERAL)
    handle = gradwire.torch.ddp.attach(model, TOPK)
    train(model, rank, range(2))

    def go_on():
        if rank == 1:
            if how == "before the hook":
                fail()
            module.trouble = fail
        train(model, rank, range(2, 3))

    with pytest.raises((ExchangeError, ArithmeticError)[rank]):
        go_on()
    saved = {"model": module.state_dict(), "gradwire": handle.state_dict()}
    torch.save(saved, folder / f"rank{rank}.pt")
    if rank == 0:
        told().set("saved", "")
    else:  # its process is there until the other one's patience is at an end
        told().wait(["saved"], 20 * patience())


def after_emergency(rank, folder):
    """Go on from what `emergency` saved."""
    saved = torch.load(folder / f"rank{rank}.pt", weights_only=True)
    module = Troubled()
    module.load_state_dict(saved["model"])
    with attached(module, TOPK, **SEVERAL) as (model, handle):
        handle.load_state_dict(saved["gradwire"])
        assert handle.step == 2
        train(model, rank, range(2, 5))
        assert handle.step == 5
        alike(fingerprint(module))


@pytest.mark.full
@pytest.mark.parametrize("how", ["before the hook", "raises"])
def test_what_ranks_save_in_an_emergency_loads_together(short_lived, two, how, tmp_path):
    short_lived.run(emergency, how=how, folder=tmp_path)
    two.run(after_emergency, folder=tmp_path)


@on("two")
def test_a_failure_to_undo_is_an_error_and_no_hang(rank):
    """While a future waits for the outcome."""
    model = DistributedDataParallel(Given())
    handle = gradwire.torch.ddp.attach(model, TOPK)
    gradients = integers(1, rank, 0)
    gradients["a"][0, 0] = torch.nan
    with (
        mock.patch.object(Step, "undo_all", side_effect=ArithmeticError("cannot undo")),
        pytest.raises(ExchangeError, match="failed on this rank: ArithmeticError: cannot undo"),
    ):
        model(gradients).backward()
    assert isinstance(handle.error, ExchangeError)


@on("two")
def test_a_backward_that_fails_on_all_ranks_leaves_no_trace(rank):
    """All raise half-way through a backward pass, catch it, wrap anew, and train on.

    DDP itself refuses to go on with a model whose backward pass did not end.
    """
    module = Troubled()
    with attached(module, TOPK, **SEVERAL) as (model, handle):
        train(model, rank, range(3))
        before, collectives = bits_left(handle), handle.report().collectives
        module.trouble = fail
        with pytest.raises(ArithmeticError):
            train(model, rank, range(3, 4))
        assert handle.report().collectives > collectives, "half-way"
        saved = handle.state_dict()
        assert handle.error is None
    module.trouble = lambda: None
    with attached(module, TOPK, **SEVERAL) as (model, handle):
        handle.load_state_dict(saved)
        assert before == bits_left(handle)
        train(model, rank, range(4, 6))
        assert handle.step == 5


@on("two")
def test_ranks_that_disagree_are_told_so_when_attaching(rank):
    model = DistributedDataParallel(network())
    scaler = torch.amp.GradScaler("cpu", enabled=rank == 0)
    for codec, options, what in (
        (gradwire.topk(ratio=0.05 * (1 + rank)), {}, "codec"),
        (TOPK, {"min_numel": 1024 if rank == 0 else 5000}, "min_numel"),
        (TOPK, {"grad_scaler": scaler}, "grad_scaler"),
    ):
        with pytest.raises(ValueError, match="rank 1 and rank 0 attached with different " + what):
            gradwire.torch.ddp.attach(model, codec, **options)


@pytest.mark.parametrize("codec", [gradwire.dense(), CODECS["reduce"]], ids=["read", "add up"])
@on("short_lived")
def test_ranks_out_of_step_do_not_use_what_others_sent(rank, codec):
    """Rank 1 leaves out a step that rank 0 makes; both then meet in a collective of one size."""
    model = DistributedDataParallel(Given())
    timeout = timedelta(seconds=stretched(3))
    handle = gradwire.torch.ddp.attach(model, codec, timeout=timeout)
    model(integers(1, rank, 0)).backward()
    handle._pipeline.drain()
    if rank == 1:
        handle._pipeline._sequence += 1  # as if it had made one more
    said = "did not run the same backward passes"
    if codec != CODECS["reduce"]:
        said = f"rank {1 - rank} is at bucket {2 - rank}, but this rank is at bucket {1 + rank}"
    with pytest.raises(ExchangeError, match=said):
        model(integers(1, rank, 1)).backward()


@on("two")
def test_what_cannot_work_is_refused():
    hooked = DistributedDataParallel(network())
    hooked.register_comm_hook(dist.group.WORLD, allreduce_hook)
    skipping = DistributedDataParallel(
        network(), find_unused_parameters=True, skip_all_reduce_unused_params=True
    )
    hook = ".*wrap model.module in a new DistributedDataParallel"
    for model, said in (
        (network(), "DistributedDataParallel, got Sequential"),
        (hooked, "already has a communication hook" + hook),
        (skipping, "find_unused_parameters instead"),
    ):
        with pytest.raises((TypeError, ValueError), match=re.compile(said, re.DOTALL)):
            gradwire.torch.ddp.attach(model, TOPK)


@pytest.mark.parametrize(
    ("said", "rank"),
    [("wait timeout after 12000ms, keys: /default_pg/0//1//cpu//0/1", "1"), ("Wait timeout", None)],
)
def test_the_wait_for_a_rank_is_recognized(said, rank):
    found = groups._ABSENT.search(said)
    assert found is not None
    assert found[1] == rank
    assert groups._ABSENT.search("Connect timeout [10.0.0.1]:80") is None
