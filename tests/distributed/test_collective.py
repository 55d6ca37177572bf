"""`gradwire.torch.all_reduce`: tensors of any loop, over real processes."""

import gc
import re
import threading

import numpy as np
import pytest
import torch
import torch.distributed as dist

import gradwire
import gradwire.torch
from gradwire.memory import Residual
from gradwire.quantize import Codebook
from gradwire.torch.collective import Reducer
from gradwire.torch.errors import AgreementError, ExchangeError, TensorError
from tests.distributed.codecs import CODECS
from tests.distributed.ranks import alike, on, together
from tests.distributed.scenarios.common import bits, reaches

TOPK = gradwire.topk(0.1)
AVERAGED = {
    **{name: CODECS[name] for name in ("default", "narrow", "senders", "leader", "reduce")},
    "two bits": gradwire.topk(0.05, quantize=Codebook(2)),
    "threshold": gradwire.threshold(2.0),
    "shared": gradwire.randomk(0.1, memory=Residual()),
    "tiles": gradwire.sparseloco(memory=Residual(), tile=(16, 16), k=9),
    "all": gradwire.topk(1.0),
}


def drawn(rank, step, shape=(37, 50)):
    """Another tensor on each rank and step; integers, so that sums are exact."""
    random = np.random.default_rng([7, rank, step])
    return torch.from_numpy(random.integers(-9, 10, shape).astype(np.float32))


@pytest.mark.parametrize("name", AVERAGED)
@on("ranks")
def test_every_codec_gives_all_ranks_the_same_bits_and_loses_nothing(rank, name):
    codec, given, results = AVERAGED[name], 0.0, []
    state = gradwire.torch.init_state(codec.for_shape((37, 50)), drawn(rank, 0), stream=rank)
    for step in range(4):
        tensor = drawn(rank, step)
        given = given + tensor.numpy().ravel()
        assert gradwire.torch.all_reduce(tensor, codec, state).is_completed()
        results.append(tensor.numpy().ravel())
    alike([each.tobytes() for each in results])
    assert state.step == 4
    if name != "senders":  # which is no mean of what the ranks gave
        mean, left = (
            np.mean(each, 0) for each in zip(*together((given, state.residual)), strict=True)
        )
        tolerance = 40 * (1e-4 if name in ("two bits", "shared") else 1e-5)
        np.testing.assert_allclose(np.sum(results, 0) + left, mean, rtol=0, atol=tolerance)


@on("two")
def test_a_list_is_what_its_tensors_are_one_by_one(rank):
    """Several tensors of several types and layouts; waited for out of order."""

    def tensors():
        return [
            drawn(rank, 1, (20, 30)).t(),
            drawn(rank, 2, (500,)).bfloat16(),
            drawn(rank, 3, ()),
            drawn(rank, 4, (8, 9, 10)),
            drawn(rank, 5, (0,)),
        ]

    whole, one_by_one = tensors(), tensors()
    held, others = ([gradwire.torch.init_state(TOPK, each) for each in tensors()] for _ in range(2))
    for _ in range(2):
        gradwire.torch.all_reduce(whole, TOPK, held)
        before = [each.clone() for each in one_by_one]
        started = [
            gradwire.torch.all_reduce(each, TOPK, state, async_op=True)
            for each, state in zip(one_by_one, others, strict=True)
        ]
        assert all(torch.equal(a, b) for a, b in zip(before, one_by_one, strict=True))
        for each in reversed(started):
            each.wait()
        assert all(each.is_completed() for each in started)
    for a, b in zip(whole, one_by_one, strict=True):
        assert torch.equal(a, b)
    for a, b in zip(held, others, strict=True):
        np.testing.assert_array_equal(a.residual, b.residual)
    alike([bits(each) for each in whole if each.numel()])
    summed, plain, codec = tensors()[0], tensors()[0].contiguous(), gradwire.topk(1.0)
    state = gradwire.torch.init_state(codec, summed)
    gradwire.torch.all_reduce(summed, codec, state, op="sum")
    dist.all_reduce(plain)
    assert torch.equal(summed, plain)


@on("two")
def test_what_is_wrong_on_one_rank_is_an_error_on_all_and_changes_nothing(rank):
    tensor = drawn(rank, 0)
    state = gradwire.torch.init_state(TOPK, tensor, name="velocity")
    gradwire.torch.all_reduce(tensor, TOPK, state)
    before = state.state_dict()
    bad, short, other = drawn(rank, 1), drawn(rank, 1, (10 + rank,)), gradwire.topk(0.2)
    if rank == 1:
        bad[0, 3] = float("nan")
    differ = "rank 1 and rank 0 called all_reduce() with different "
    not_finite = "tensor 'velocity' on rank 1 has 1 non-finite value(s), the first at flat"
    for kind, said, given, codec, its, options in (
        (TensorError, not_finite, bad, TOPK, state, {}),
        (AgreementError, differ + "codec", drawn(rank, 1), other if rank else TOPK, state, {}),
        (
            *(AgreementError, differ + "op", drawn(rank, 1), TOPK, state),
            {"op": "sum" if rank else "mean"},
        ),
        (
            *(AgreementError, differ + "tensors", short, TOPK),
            *(gradwire.torch.init_state(TOPK, short), {}),
        ),
    ):
        kept = bits(given)
        with pytest.raises(kind, match=re.escape(said)):
            gradwire.torch.all_reduce(given, codec, its, **options)
        assert bits(given) == kept
    after = state.state_dict()
    for each in ("residual", "step"):
        np.testing.assert_array_equal(after[each], before[each])
    # A rank that begins with another state than the others goes on with them.
    if rank == 1:
        state = gradwire.torch.init_state(TOPK, tensor, name="velocity")
    last = drawn(rank, 2)
    gradwire.torch.all_reduce(last, TOPK, state)
    alike(bits(last))
    # Zero on all ranks: what is left is sent all the same.
    zero, left = torch.zeros(37, 50), state.residual_norm or 0.0
    gradwire.torch.all_reduce(zero, TOPK, state)
    assert zero.any()
    assert (state.residual_norm or 0.0) < left


@on("two")
def test_wrong_arguments_are_explained():
    tensor, tiles = torch.zeros(50), gradwire.sparseloco()
    state = gradwire.torch.init_state(TOPK, tensor)
    for arguments, said in (
        ((tensor, gradwire.topk, state), "the function topk itself; call it"),
        ((tensor, TOPK, None), "gradwire.torch.init_state(codec, tensor)"),
        (([], TOPK, []), "got 0 tensors and 0 states"),
        (([tensor, tensor], TOPK, [state, state]), "got 2 tensors and 1 states"),
        ((torch.zeros(51), TOPK, state), "state 0 is for 50 entries, tensor 0 has 51"),
        ((torch.zeros(50, dtype=torch.int32), TOPK, state), "got torch.int32"),
        (
            (tensor, gradwire.dense(), state),
            "make one with gradwire.torch.init_state(codec, tensor)",
        ),
        ((torch.nn.Parameter(tensor), TOPK, state), "pass tensor.detach()"),
        (
            (torch.zeros(5, 10), tiles, gradwire.torch.init_state(tiles, tensor)),
            "gradwire.torch.init_state(codec.for_shape(tensor.shape), tensor)",
        ),
        ((tensor, TOPK, state, "world"), "a process group that this rank is in"),
    ):
        with pytest.raises((TypeError, ValueError), match=re.escape(said)):
            gradwire.torch.all_reduce(*arguments)
    said = re.escape("op must be one of mean, sum, got 'max'")
    with pytest.raises(ValueError, match=said):
        gradwire.torch.all_reduce(tensor, TOPK, state, op="max")


@on("two")
def test_it_ends_with_the_group_or_when_it_is_closed_or_dropped(rank, size):
    others = set(threading.enumerate())  # some of which may end meanwhile

    def threads():
        new = set(threading.enumerate()) - others
        return sum(each.name.startswith("gradwire") for each in new)

    tensor = drawn(rank, 0)
    state = gradwire.torch.init_state(TOPK, tensor)
    group = dist.new_group(list(range(size)))
    gradwire.torch.all_reduce(tensor, TOPK, state, group)
    gradwire.torch.all_reduce(tensor, TOPK, state, group)
    assert threads() == 2
    dist.destroy_process_group(group)
    del group
    gc.collect()
    assert reaches(lambda: threads() == 0)
    with Reducer() as reducer:
        reducer.all_reduce(tensor, TOPK, state)
        assert repr(reducer) == f"<gradwire.torch.Reducer: rank {rank} of 2>"
        assert (reducer.rank, reducer.world_size) == (rank, 2)
    with pytest.raises(ExchangeError, match="closed"):
        reducer.all_reduce(tensor, TOPK, state)
    dropped = Reducer()
    dropped.all_reduce(tensor, TOPK, state)
    del dropped
    gc.collect()
    assert reaches(lambda: threads() == 0)


def absent(rank):
    """One rank does not call: the others get an error after the timeout."""
    tensor = drawn(rank, 0)
    state = gradwire.torch.init_state(TOPK, tensor)
    gradwire.torch.all_reduce(tensor, TOPK, state)
    before, step = state.residual, state.step
    if rank == 0:
        with pytest.raises(ExchangeError, match=r"did not call all_reduce\(\)"):
            gradwire.torch.all_reduce(tensor, TOPK, state)
        np.testing.assert_array_equal(state.residual, before)
        assert state.step == step


def test_a_rank_that_does_not_call_is_an_error_and_no_hang(short_lived):
    (kind, text), _ = short_lived.try_run(absent)
    assert kind == "returned", text


@pytest.mark.parametrize("name", ["all_reduce", "Reducer", "collective"])
def test_it_is_found_where_it_is_looked_for(name):
    assert getattr(gradwire.torch, name)
