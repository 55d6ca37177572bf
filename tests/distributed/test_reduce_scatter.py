"""The sparse reduce-scatter over real processes, beside a plain model of it."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

import gradwire
from gradwire.memory import NoMemory
from gradwire.sparsify import TopK
from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.errors import ExchangeError
from gradwire.torch.exchange.owners import _aside, _Run, check_lengths
from gradwire.torch.exchange.wire import Verdict
from tests.distributed.codecs import CODECS
from tests.distributed.plain_owners import check_bytes, runs_of, steps
from tests.distributed.ranks import Ranks, on
from tests.distributed.scenarios.common import Given, attached, integers

RATIO = 0.05


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """Where the largest magnitudes are: of equal ones the first, and no zeros."""
    chosen = np.zeros(values.size, bool)
    chosen[np.argsort(-np.abs(values), kind="stable")[:count]] = True
    chosen &= values != 0
    return chosen


def nbytes(values: np.ndarray, chosen: np.ndarray) -> int:
    """Bytes of a frame of these entries."""
    codec = gradwire.Codec(sparsify=TopK(ratio=RATIO), memory=NoMemory())
    if chosen.all():
        return 48 + 4 * values.size
    return codec.encode_at(
        values.astype(np.float32), None, np.flatnonzero(chosen).astype(np.uint32)
    ).nbytes


def check_step(found: list[dict[str, Any]]) -> None:
    """Hold one step of all ranks to the plain model, to the byte."""
    size = len(found)
    every = range(size)
    # Bytes of parts from rank to owner, and of what each owner makes.
    parts = {name: np.zeros((size, size), int) for name in found[0]["input"]}
    made = {name: np.zeros(size, int) for name in found[0]["input"]}
    for name in found[0]["input"]:
        inputs = [each["input"][name].copy() for each in found]
        runs = runs_of(inputs[0].size, found[0]["runs"][name], size)
        for owner, start, stop in runs:  # an encode does not see what waits at the owner
            inputs[owner][start:stop] -= found[owner]["before"][name][start:stop]
        sent = [largest(each, max(1, int(RATIO * each.size))) for each in inputs]
        left = [np.where(chosen, 0.0, each) for each, chosen in zip(inputs, sent, strict=True)]
        average = np.zeros_like(inputs[0], np.float64)
        for owner, start, stop in runs:
            at = slice(start, stop)
            for rank in every:
                parts[name][rank, owner] += nbytes(inputs[rank][at], sent[rank][at])
            total = sum(inputs[rank][at] * sent[rank][at] for rank in every)
            count = -(-6 * sum(int(sent[rank][at].sum()) for rank in every) // (5 * size))
            left[owner][at] += found[owner]["before"][name][at]
            total = total + left[owner][at]
            chosen = largest(total, count)
            average[at] = np.where(chosen, (total / np.float32(size)).astype(np.float32), 0.0)
            left[owner][at] = np.where(chosen, 0.0, total)
            made[name][owner] += nbytes(total, chosen)
        for rank in every:
            np.testing.assert_array_equal(found[rank]["average"][name], average, err_msg=name)
            np.testing.assert_array_equal(found[rank]["after"][name], left[rank], err_msg=name)
    for rank in every:
        check_bytes(rank, found[rank], parts, made)


@pytest.mark.parametrize("size", [2, 3, *(pytest.param(n, marks=pytest.mark.full) for n in (4, 8))])
def test_every_entry_and_every_byte_is_that_of_a_plain_model(size, kept, nursery):
    chosen = kept(size, "cpu") if size < 8 else Ranks(nursery, size)
    results = chosen.run(steps, codec=CODECS["scattered"], scale=1)
    if size == 8:
        chosen.stop()
    for step in zip(*results, strict=True):
        check_step(list(step))
    assert any(each.any() for each in results[0][-1]["after"].values())


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
