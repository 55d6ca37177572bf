"""Both exchanges in which ranks own ranges: a plain model, steps that fail, and other owners."""

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire.memory import NoMemory, Residual
from gradwire.quantize import BFloat16
from gradwire.sparsify import TopK
from gradwire.torch import backends
from gradwire.torch.ddp import ExchangeError, GradientError
from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.step import Step
from gradwire.torch.exchange.owners import _aside, _Run, check_lengths
from gradwire.torch.exchange.wire import Verdict
from tests.distributed.codecs import CODECS, OWNED, SEVERAL, SUMS
from tests.distributed.plain_owners import Plain, steps
from tests.distributed.ranks import alike, on
from tests.distributed.scenarios.common import (
    SHAPES,
    Given,
    Sums,
    attached,
    bits_left,
    gradients_of,
    integers,
    network,
    residuals,
    train,
)

SPARSE = CODECS["scattered"]
both = pytest.mark.parametrize("codec", [SPARSE, CODECS["quantized"]], ids=["sparse", "quantized"])


@pytest.mark.parametrize("codec", [SPARSE, OWNED["qsgd-kept"]], ids=["sparse", "quantized"])
@on("ranks")
def test_a_step_that_does_not_count_leaves_no_trace_in_the_residuals_of_owners(rank, codec):
    with attached(Given(), codec, **SEVERAL) as (model, handle):

        def backward(gradients):
            model.zero_grad()
            model(gradients).backward()

        for step in range(3):
            backward(integers(1, rank, step))
        before = bits_left(handle)
        backward(integers(1, rank, 3))
        assert before != bits_left(handle)
        handle.discard()
        assert before == bits_left(handle)
        bad = integers(1, rank, 3)
        if rank == 1:
            bad["b"][3, 2] = np.inf
        # Sums of finite entries that are not finite: only their owner sees them.
        large = integers(1, rank, 3)
        large["a"][5, 7] = 3e38
        for given, name, first in ((bad, "b", 3 * 30 + 2), (large, "a", 5 * 40 + 7)):
            with pytest.raises(GradientError) as caught:
                backward(given)
            error = caught.value
            assert alike((error.name, error.rank, error.first))[::2] == (name, first)
            assert name == "a" or error.rank == 1
            assert before == bits_left(handle)
        backward(integers(1, rank, 4))
        assert before != bits_left(handle)
        assert handle.step == 4


def fails(rank, where, how, codec):
    """After two good steps rank 1 fails in one phase: check what each rank sees and keeps."""
    module = network()
    model = DistributedDataParallel(module, **SEVERAL)
    handle = gradwire.torch.ddp.attach(model, codec)
    train(model, rank, range(2))
    before = bits_left(handle)

    def trouble(*_, **__):
        if how == "dies":
            os._exit(7)
        raise MemoryError(f"no memory to {where}")

    real, calls = Step.undo, []

    def undo(step, parameters):
        calls.append(step)
        if len(calls) == 1:
            trouble()
        real(step, parameters)

    (bucket,) = {type(backends.backend_for(each).bucket(each)) for each in module.parameters()}
    place, name, replaced = {
        "encode": (bucket, "encode", trouble),
        "cut": (bucket, "split", trouble),
        "undo": (Step, "undo", undo),
        "merge": (bucket, "merge", trouble),
    }[where]
    did = "encode" if where in ("encode", "cut") else "merge what it owns"
    said = f"rank 1 could not {did}: MemoryError: no memory to {where}"
    if how == "dies":
        said = "another rank has stopped"
    with (
        mock.patch.object(place, name, replaced if rank == 1 else getattr(place, name)),
        pytest.raises(ExchangeError, match=said),
    ):
        train(model, rank, range(2, 3))
    assert before == bits_left(handle)
    with pytest.raises(ExchangeError, match="stopped after an earlier error"):
        train(model, rank, range(3, 4))
    handle.detach()


@pytest.mark.parametrize(
    ("where", "codec"),
    [
        ("encode", SPARSE),
        ("cut", CODECS["quantized"]),
        ("undo", SPARSE),
        ("merge", SPARSE),
        ("merge", CODECS["quantized"]),
    ],
    ids=["encode", "cut", "undo", "merge sparse", "merge quantized"],
)
@on("two")
def test_a_rank_that_fails_in_any_phase_is_an_error_of_all(rank, where, codec):
    fails(rank, where, "raises", codec)


@pytest.mark.parametrize(
    ("where", "codec"), [("cut", SPARSE), ("merge", CODECS["quantized"])], ids=["cut", "merge"]
)
def test_a_rank_that_dies_in_any_phase_is_an_error_of_the_others(expendable, where, codec):
    (kind, found), other = expendable.try_run(fails, where=where, how="dies", codec=codec)
    assert other[0] == "died"
    assert kind == "returned", found


def save(rank, folder, codec):
    """Leave something in the residuals, and a file for each rank."""
    with attached(Given(), codec) as (model, handle):
        for step in range(3):
            model.zero_grad()
            model(integers(9, rank, step)).backward()
        torch.save(handle.state_dict(), folder / f"rank{rank}.pt")


def load(rank, size, folder, codec):
    """Load the files of two ranks, and go on: other ranks own the entries."""
    saved = [torch.load(folder / f"rank{old}.pt", weights_only=True) for old in range(2)]
    sums = Sums()
    for old, each in enumerate(saved):
        held = each[f"rank{old}"]["residual"]
        assert all(values.any() for values in held.values())
        if rank == 0:
            sums.give(held)
    with attached(Given(), codec, **SEVERAL) as (model, handle):
        handle.load_state_dict(saved, policy="sum-and-split")
        for step in range(3, 6):
            model.zero_grad()
            model(sums.give(integers(9, rank, step))).backward()
            sums.take(model.module)
        sums.check(residuals(handle), 1e-3 if codec == SPARSE else 5e-3)


@both
def test_nothing_is_lost_when_other_ranks_own_the_entries(two, three, tmp_path, codec):
    two.run(save, folder=tmp_path, codec=codec)
    three.run(load, folder=tmp_path, codec=codec)


@both
@on("four")
def test_what_cannot_work_is_refused_by_name(codec):
    tensor = torch.ones(2000)
    state = gradwire.torch.init_state(codec, tensor)
    with pytest.raises(ValueError, match=r"all_reduce\(\) gathers frames or sums val") as caught:
        gradwire.torch.all_reduce(tensor, codec, state)
    assert repr(codec.exchange) in str(caught.value)
    model = DistributedDataParallel(network())
    with pytest.raises(ValueError, match="the ranks of a node divide it already") as caught:
        gradwire.torch.ddp.attach(model, codec, hierarchy=2)
    assert repr(codec.exchange) in str(caught.value)


# A plain model ----------------------------------------------------------------------------------

RATIO = 0.05


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """The largest magnitudes, of equal ones the first; zeros in place of all others."""
    sent = np.zeros_like(values)
    chosen = np.argsort(-np.abs(values), kind="stable")[:count]
    sent[chosen] = values[chosen]
    return sent


def sparse_nbytes(values: np.ndarray, sent: np.ndarray, start: int, column: int) -> int:
    codec = gradwire.Codec(sparsify=TopK(ratio=RATIO), memory=NoMemory())
    if sent.all():
        return 48 + 4 * values.size
    positions = np.flatnonzero(sent).astype(np.uint32)
    return codec.encode_at(values.astype(np.float32), None, positions).nbytes


def onebit(values: np.ndarray, column: int) -> np.ndarray:
    """Two means of each column, of the entries that are not below zero and of the others."""
    sent = np.empty(values.size, np.float32)
    for start in range(0, values.size, column):
        part = values[start : start + column]
        for side in (part >= 0, part < 0):
            if side.any():
                sent[start : start + column][side] = part[side].astype(np.float64).mean()
    return sent


def signs(values: np.ndarray, column: int) -> np.ndarray:
    """One magnitude for all."""
    mean = np.abs(values.astype(np.float64)).mean().astype(np.float32)
    return np.asarray(np.where(values >= 0, mean, -mean), np.float32)


def bfloat16(values: np.ndarray, column: int) -> np.ndarray:
    """The nearest, ties to even."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    kept = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
    return np.asarray(kept.astype(np.uint32).view(np.float32))


def onebit_nbytes(values: np.ndarray, sent: np.ndarray, start: int, column: int) -> int:
    """Where a range begins within a column, a part is two frames."""
    first = min(-start % column, values.size)
    sizes = [numel for numel in (first, values.size - first) if numel]
    return sum(48 + 4 + 8 * -(-numel // column) + -(-numel // 8) for numel in sizes)


def signs_nbytes(values: np.ndarray, sent: np.ndarray, start: int, column: int) -> int:
    return 48 + 4 + -(-values.size // 8)


def halves_nbytes(values: np.ndarray, sent: np.ndarray, start: int, column: int) -> int:
    return 48 + 2 * values.size


def quantized(
    codec: gradwire.Codec,
    quantize: Callable[[np.ndarray, int], np.ndarray],
    nbytes: Callable[[np.ndarray, np.ndarray, int, int], int],
    *,
    in_columns: bool = False,
) -> Plain:
    """Sums are quantized as values are."""
    return Plain(
        codec,
        quantize,
        lambda total, _, column: quantize(total, column),
        nbytes,
        in_columns=in_columns,
    )


HALVES = gradwire.dense(quantize=BFloat16(), memory=Residual(), exchange=SUMS)
PLAIN = {
    "sparse": Plain(
        SPARSE,
        lambda values, _: largest(values, max(1, int(RATIO * values.size))),
        lambda total, count, _: largest(total, count),
        sparse_nbytes,
        waits=True,
    ),
    "onebit": quantized(CODECS["quantized"], onebit, onebit_nbytes, in_columns=True),
    "signsgd": quantized(gradwire.signsgd(exchange=SUMS), signs, signs_nbytes),
    "bfloat16": quantized(HALVES, bfloat16, halves_nbytes),
}


@pytest.mark.parametrize("size", [2, 3, *(pytest.param(n, marks=pytest.mark.full) for n in (4, 8))])
def test_every_bit_and_every_byte_is_that_of_a_plain_model(size, kept):
    for kind, plain in PLAIN.items():
        scale = 1 if kind == "sparse" else 77  # whose sums are exact
        results = kept(size, "cpu").run(steps, codec=plain.codec, scale=scale)
        for step in zip(*results, strict=True):
            plain.check(list(step))
        assert any(values.any() for values in results[0][-1]["after"].values())


@pytest.mark.full
@pytest.mark.parametrize("kind", ["qsgd", "natural"])
@on("three")
def test_without_a_memory_sums_are_right_on_average(rank, size, kind):
    """Average the same gradients many times."""
    times, random = 150, np.random.default_rng(rank)
    gradients = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    gradients["a"] = torch.from_numpy(random.standard_normal(SHAPES["a"]).astype(np.float32))
    total = gradients["a"].clone()
    dist.all_reduce(total)
    expected, found = total.double().numpy().ravel() / size, []
    with attached(Given(), OWNED[kind]) as (model, _):
        for _ in range(times):
            model.zero_grad()
            model(gradients).backward()
            found.append(gradients_of(model.module)["a"])
    mean, squares = np.mean(found, 0), np.mean(np.square(found), 0)
    alike((mean.tobytes(), squares.tobytes()))
    deviation = np.sqrt(np.maximum(squares - mean**2, 0) / times)
    off = mean - expected
    # As far off as such a mean is by chance: all together, and in the direction of the sums,
    # where a bias would add up.
    assert 0.8 < np.sqrt((off**2).mean() / (deviation**2).mean()) < 1.2
    assert abs(off @ expected) < 5 * np.sqrt(deviation**2 @ expected**2)


@on("two")
def test_sizes_that_another_exchange_has_observed_trim_nothing(rank):
    """After a checkpoint of an all-gather of much smaller frames."""
    few = {name: torch.zeros_like(each) for name, each in integers(3, rank, 0).items()}
    for each in few.values():
        each.view(-1)[0] = 1.0
    with attached(Given(), CODECS["default"]) as (model, handle):
        for _ in range(4):
            model.zero_grad()
            model(few).backward()
        saved = handle.state_dict()
    with attached(Given(), CODECS["scattered"]) as (model, handle):
        handle.load_state_dict(saved)
        for step in range(3):
            model.zero_grad()
            model(integers(3, rank, step)).backward()
        assert not any(each.trimmed for each in handle.report().parameters if not each.dense)


def test_a_length_that_cannot_be_is_an_error_before_memory_is_taken_for_it() -> None:
    assert check_lengths([Verdict(0), Verdict(4096)], [4096, 4096]) == [0, 4096]
    with pytest.raises(ExchangeError, match="rank 1 announces 9223372036854775808 bytes"):
        check_lengths([Verdict(17), Verdict(1 << 63)], [4096, 4096])


def test_residuals_set_aside_come_back_whatever_fails() -> None:
    codec = gradwire.topk(0.1)
    states = [codec.init_state(100) for _ in range(2)]
    for state in states:
        codec.encode(np.arange(100, dtype=np.float32), state)
    before = [state.residual for state in states]
    slots = [SimpleNamespace(codec=codec, state=state) for state in states]
    contents = cast(BucketContents, SimpleNamespace(compressed=slots))
    good, bad = [_Run(0, 10, 60), _Run(1, 0, 50)], [_Run(0, 10, 60), _Run(1, 0, 101)]

    def failing(*_: object) -> None:
        assert not any(state._lift(10, 50).any() for state in states)
        raise RuntimeError("the encode fails")

    with pytest.raises(RuntimeError, match="fails"), _aside(contents, good):
        failing()
    with pytest.raises(ValueError, match="entries 0 to 101"), _aside(contents, bad):
        pass
    for state, residual in zip(states, before, strict=True):
        np.testing.assert_array_equal(state.residual, residual)
