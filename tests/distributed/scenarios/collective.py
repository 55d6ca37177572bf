"""Tensors of any loop, averaged over the ranks."""

import contextlib
import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import gradwire
import gradwire.torch
from gradwire.exchange import AllGather, AllReduce, LeaderIndices
from gradwire.memory import Residual
from gradwire.quantize import Codebook
from gradwire.sparsify import RandomK, TopK
from gradwire.torch.collective import Reducer
from gradwire.torch.errors import AgreementError, ExchangeError, TensorError
from tests.distributed.scenarios.common import bits, reaches

CODECS: dict[str, Callable[[], gradwire.Codec]] = {
    "gather": lambda: gradwire.topk(0.05),
    "senders": lambda: gradwire.Codec(
        sparsify=TopK(ratio=0.05), exchange=AllGather(mean="senders")
    ),
    "two bits": lambda: gradwire.Codec(sparsify=TopK(ratio=0.05), quantize=Codebook(2)),
    "threshold": lambda: gradwire.threshold(2.0),
    "reduce": lambda: gradwire.dense(memory=Residual(), exchange=AllReduce()),
    "shared": lambda: gradwire.Codec(sparsify=RandomK(ratio=0.1), exchange=AllReduce()),
    "leader": lambda: gradwire.Codec(sparsify=TopK(ratio=0.05), exchange=LeaderIndices()),
    "bfloat16": lambda: gradwire.Codec(sparsify=TopK(ratio=0.05), memory=Residual(low_memory=True)),
    "tiles": lambda: gradwire.sparseloco(memory=Residual(), tile=(16, 16), k=9),
    "all": lambda: gradwire.topk(1.0),
}


def drawn(rank: int, step: int, shape: Any = (37, 50)) -> torch.Tensor:
    """Another tensor on each rank and step; integers, so that sums are exact."""
    random = np.random.default_rng([7, rank, step])
    return torch.from_numpy(random.integers(-9, 10, shape).astype(np.float32))


def averages(rank: int, world_size: int) -> dict[str, Any]:
    """For each codec the bits of some averages, and what conservation compares."""
    found: dict[str, Any] = {}
    for name, make in CODECS.items():
        codec = make()
        shaped = codec.for_shape((37, 50))
        state = gradwire.torch.init_state(shaped, drawn(rank, 0), stream=rank)
        results, given = [], []
        for step in range(4):
            tensor = drawn(rank, step)
            given.append(tensor.numpy().ravel().copy())
            assert gradwire.torch.all_reduce(tensor, codec, state).is_completed()
            results.append(tensor)
        found[name] = {
            "bits": [bits(each) for each in results],
            "sum": np.sum([each.numpy().ravel() for each in results], axis=0),
            "given": np.sum(given, axis=0),
            "residual": state.residual,
            "step": state.step,
        }
    return found


def lists(rank: int, world_size: int) -> dict[str, Any]:
    """Several tensors of several types and layouts together, as one by one; and out of order."""
    codec = gradwire.topk(0.1)

    def tensors() -> list[torch.Tensor]:
        return [
            drawn(rank, 1, (20, 30)).t(),
            drawn(rank, 2, (500,)).bfloat16(),
            drawn(rank, 3, ()),
            drawn(rank, 4, (8, 9, 10)),
            drawn(rank, 5, (0,)),
        ]

    def states() -> list[Any]:
        return [gradwire.torch.init_state(codec, each) for each in tensors()]

    together, one_by_one = tensors(), tensors()
    held, others = states(), states()
    started = []
    for _ in range(2):
        gradwire.torch.all_reduce(together, codec, held)
        before = [each.clone() for each in one_by_one]
        started = [
            gradwire.torch.all_reduce(each, codec, state, async_op=True)
            for each, state in zip(one_by_one, others, strict=True)
        ]
        assert all(torch.equal(a, b) for a, b in zip(before, one_by_one, strict=True))
        for each in reversed(started):  # in whatever order they are waited for
            each.wait()
    summed = tensors()[0]
    gradwire.torch.all_reduce(summed, gradwire.topk(1.0), states_of(summed), op="sum")
    plain = tensors()[0].contiguous()
    dist.all_reduce(plain)
    return {
        "same": [torch.equal(a, b) for a, b in zip(together, one_by_one, strict=True)],
        "bits": [bits(each) for each in together if each.numel()],
        "residuals": all(
            np.array_equal(a.residual, b.residual) for a, b in zip(held, others, strict=True)
        ),
        "sum": torch.equal(summed, plain),
        "done": all(each.is_completed() for each in started),
    }


def states_of(tensor: torch.Tensor) -> Any:
    """A new state for a tensor that is sent whole."""
    return gradwire.torch.init_state(gradwire.topk(1.0), tensor)


def failures(rank: int, world_size: int) -> dict[str, Any]:
    """What is wrong on one rank is an error on all, and changes nothing."""
    codec = gradwire.topk(0.1)
    found: dict[str, Any] = {}
    tensor = drawn(rank, 0)
    state = gradwire.torch.init_state(codec, tensor, name="velocity")
    gradwire.torch.all_reduce(tensor, codec, state)
    before = state.state_dict()

    def attempt(name: str, given: torch.Tensor, codec: Any, state: Any, **options: Any) -> None:
        kept = given.clone()
        try:
            gradwire.torch.all_reduce(given, codec, state, **options)
        except (TensorError, AgreementError, ExchangeError) as error:
            found[name] = type(error).__name__, str(error), torch.equal(given, kept) or rank == 1

    bad = drawn(rank, 1)
    if rank == 1:
        bad[0, 3] = float("nan")
    attempt("not finite", bad, codec, state)
    other = gradwire.topk(0.2 if rank else 0.1)
    attempt("codec", drawn(rank, 1), other, state)
    attempt("op", drawn(rank, 1), codec, state, op="sum" if rank else "mean")
    short = drawn(rank, 1, (10 + rank,))
    attempt("shape", short, codec, gradwire.torch.init_state(codec, short))
    after = state.state_dict()
    found["unchanged"] = all(
        np.array_equal(after[each], before[each]) for each in ("residual", "step")
    )
    # A rank that begins with another state than the others goes on with them.
    if rank == 1:
        state = gradwire.torch.init_state(codec, tensor, name="velocity")
    last = drawn(rank, 2)
    gradwire.torch.all_reduce(last, codec, state)
    found["goes on"] = bits(last)
    # Zero on all ranks: what is left is sent all the same.
    zero, left = torch.zeros(37, 50), state.residual_norm or 0.0
    gradwire.torch.all_reduce(zero, codec, state)
    found["flushes"] = bool(zero.any()) and (state.residual_norm or 0.0) < left
    return found


def wrong_arguments(rank: int, world_size: int) -> dict[str, str]:
    """Refused on this rank, in words that help."""
    codec, tensor = gradwire.topk(0.1), torch.zeros(50)
    state = gradwire.torch.init_state(codec, tensor)
    tries: dict[str, tuple[Any, ...]] = {
        "no codec": (tensor, gradwire.topk, state),
        "no state": (tensor, codec, None),
        "none": ([], codec, []),
        "twice": ([tensor, tensor], codec, [state, state]),
        "length": (torch.zeros(51), codec, state),
        "integers": (torch.zeros(50, dtype=torch.int32), codec, state),
        "other codec": (tensor, gradwire.dense(), state),
        "parameter": (torch.nn.Parameter(tensor), codec, state),
        "tiles": (
            torch.zeros(5, 10),
            gradwire.sparseloco(),
            gradwire.torch.init_state(gradwire.sparseloco(), tensor),
        ),
        "group": (tensor, codec, state, "world"),
    }
    found = {}
    for name, arguments in tries.items():
        with contextlib.suppress(AssertionError):
            try:
                gradwire.torch.all_reduce(*arguments)
            except (TypeError, ValueError) as error:
                found[name] = str(error)
    try:
        gradwire.torch.all_reduce(tensor, codec, state, op="max")  # type: ignore[arg-type]
    except ValueError as error:
        found["op"] = str(error)
    return found


def lifetime(rank: int, world_size: int) -> dict[str, Any]:
    """Threads and groups end with the process group, with close(), or with the object."""
    others = set(threading.enumerate())  # some of which may end meanwhile

    def threads() -> int:
        new = set(threading.enumerate()) - others
        return sum(each.name.startswith("gradwire") for each in new)

    codec = gradwire.topk(0.1)
    tensor = drawn(rank, 0)
    state = gradwire.torch.init_state(codec, tensor)
    group: Any = dist.new_group(list(range(world_size)))
    gradwire.torch.all_reduce(tensor, codec, state, group)
    gradwire.torch.all_reduce(tensor, codec, state, group)
    kept = threads()
    dist.destroy_process_group(group)
    del group
    gc.collect()
    with_group = reaches(lambda: threads() == 0)
    with Reducer() as reducer:
        reducer.all_reduce(tensor, codec, state)
        shown = repr(reducer), reducer.rank, reducer.world_size
    try:
        reducer.all_reduce(tensor, codec, state)
    except ExchangeError as error:
        closed = str(error)
    dropped = Reducer()
    dropped.all_reduce(tensor, codec, state)
    del dropped
    gc.collect()
    return {
        "kept": kept,
        "with the group": with_group,
        "shown": shown,
        "closed": closed,
        "dropped": reaches(lambda: threads() == 0),
    }


def absent(rank: int, world_size: int) -> str:
    """One rank does not call: the others get an error after the timeout."""
    codec, tensor = gradwire.topk(0.1), drawn(rank, 0)
    state = gradwire.torch.init_state(codec, tensor)
    gradwire.torch.all_reduce(tensor, codec, state)
    before, step = state.residual, state.step
    if rank == 1:
        return ""
    try:
        gradwire.torch.all_reduce(tensor, codec, state)
    except ExchangeError as error:
        assert before is not None
        assert state.residual is not None
        assert np.array_equal(state.residual, before)
        assert state.step == step
        return str(error)
    return "no error"
