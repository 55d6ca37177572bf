"""Messages between steps have a channel of their own: no process is aborted, no traceback lost."""

import contextlib
import re
import time
from datetime import timedelta

import pytest
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire.torch.ddp import ExchangeError
from gradwire.torch.transport.process_group import _is_registered as is_registered
from tests.deadlines import stretched
from tests.distributed.codecs import CODECS, SEVERAL
from tests.distributed.conftest import SHORT
from tests.distributed.ranks import on
from tests.distributed.scenarios.common import network, reaches, train
from tests.distributed.troubles import fail, patience, told

TOPK = CODECS["default"]


def started(rank):
    """A model that has made two steps, and its handle."""
    model = DistributedDataParallel(network(), **SEVERAL)
    handle = gradwire.torch.ddp.attach(model, TOPK)
    train(model, rank, range(2))
    return model, handle


@pytest.mark.full
@on("two")
def test_a_rank_that_leaves_by_an_exception_keeps_it_and_the_others_get_a_typed_error(rank):
    """Rank 1 raises between two steps; the other one is in its backward pass meanwhile."""

    def go():
        model, handle = started(rank)
        with handle:
            if rank == 1:
                fail()
            train(model, rank, range(2, 3))

    start = time.monotonic()
    with pytest.raises((ExchangeError, ArithmeticError)[rank]):
        go()
    assert time.monotonic() - start < 60.0, "the timeout of the group is 120 s"


def paused(rank, model, handle):
    """A backward pass that is averaged plainly."""
    with handle.paused():
        train(model, rank, range(2, 3))


ACTS = {
    "epoch": lambda rank, model, handle: handle.epoch(1),
    "load": lambda rank, model, handle: handle.load_state_dict(handle.state_dict()),
    "detach": lambda rank, model, handle: handle.detach(),
    "discard": lambda rank, model, handle: handle.discard(),
    "pause": paused,
    "backward": lambda rank, model, handle: train(model, rank, range(2, 3)),
}


@pytest.mark.full
@pytest.mark.parametrize(
    ("acts", "said"),
    [
        ("epoch backward", ["another rank did not call epoch()", "was not exchanged"]),
        ("discard backward", ["another rank did not call discard", "was not exchanged"]),
        ("pause backward", ["another rank did not call pause", "was not exchanged"]),
        ("backward load", ["was not exchanged", "another rank did not call load_state"]),
        ("epoch detach", ["rank 1 called detach(), this rank epoch()", None]),
        ("epoch load", ["rank 1 called load_state_dict(), this", "rank 0 called epoch(), this"]),
    ],
)
@on("short_lived")
def test_ranks_at_different_acts_get_a_typed_error(rank, acts, said):
    model, handle = started(rank)
    act, expected = ACTS[acts.split()[rank]], said[rank]
    if expected is None:
        act(rank, model, handle)
    else:
        with pytest.raises(ExchangeError, match=re.escape(expected)):
            act(rank, model, handle)
    if acts == "epoch load":  # both came to know of it, and may go on
        train(model, rank, range(2, 3))
        assert handle.step == 3
    elif "discard" not in acts:
        assert handle.step == 2


@on("two")
def test_detach_gives_up_waiting(rank, tmp_path):
    """Rank 0 detaches; rank 1 comes when nobody waits any more. Both train on without gradwire."""
    model, handle = started(rank)
    left = tmp_path / "left"
    assert rank == 0 or reaches(left.exists)
    start = time.monotonic()
    handle.detach(timedelta(seconds=0.5))
    seconds = time.monotonic() - start
    assert rank == 1 or seconds > 0.4
    assert seconds < stretched(60.0), "the timeout of the group is 120 s"
    left.touch()
    train(model, rank, range(2, 4))


@on("short_lived")
def test_detach_gives_up_a_bucket_that_is_under_way(rank):
    """Rank 0 has one that rank 1 never sends."""
    model, handle = started(rank)
    made = list(handle._engine._release.args[-1]._made)
    if rank == 1:
        told().wait(["left"], 20 * patience())
        handle.detach(timedelta(seconds=0.5))
        return
    with contextlib.suppress(ArithmeticError):
        model.module[0].weight.register_hook(lambda _: fail())
        train(model, rank, range(2, 3))
    start = time.monotonic()
    handle.detach(timedelta(seconds=0.5))
    assert time.monotonic() - start < stretched(SHORT)
    # The process groups are left once the bucket's collective has timed out.
    limit = 12 * patience().total_seconds()
    assert reaches(lambda: not any(map(is_registered, made)), limit)
    told().set("left", "")
