"""The quantized all-reduce over real processes, beside a plain model of it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire.memory import Residual
from gradwire.quantize import BFloat16
from tests.distributed.codecs import CODECS, OWNED, SUMS
from tests.distributed.plain_owners import check_bytes, runs_of, steps
from tests.distributed.ranks import alike, on
from tests.distributed.scenarios.common import (
    SHAPES,
    Given,
    attached,
    gradients_of,
)


def columns_of(name: str, numel: int) -> int:
    """How many entries of a parameter of `scenarios.common.SHAPES` are a column."""
    return {"a": 40, "b": 30}.get(name, numel)


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


def onebit_nbytes(numel: int, column: int) -> int:
    return 48 + 4 + 8 * -(-numel // column) + -(-numel // 8)


def signs_nbytes(numel: int, column: int) -> int:
    return 48 + 4 + -(-numel // 8)


def halves_nbytes(numel: int, column: int) -> int:
    return 48 + 2 * numel


Quantize = Callable[[np.ndarray, int], np.ndarray]
HALVES = gradwire.dense(quantize=BFloat16(), memory=Residual(), exchange=SUMS)
PLAIN: dict[str, tuple[gradwire.Codec, Quantize, Callable[[int, int], int], bool]] = {
    "onebit": (CODECS["quantized"], onebit, onebit_nbytes, True),
    "signsgd": (gradwire.signsgd(exchange=SUMS), signs, signs_nbytes, False),
    "bfloat16": (HALVES, bfloat16, halves_nbytes, False),
}


def check_step(found: list[dict[str, Any]], kind: str) -> None:
    """Hold one step of all ranks to the plain model, to the bit and the byte."""
    _, quantize, nbytes, in_columns = PLAIN[kind]
    size = len(found)
    every = range(size)
    parts = {name: np.zeros((size, size), int) for name in found[0]["input"]}
    made = {name: np.zeros(size, int) for name in found[0]["input"]}
    for name in found[0]["input"]:
        inputs = [each["input"][name] for each in found]
        numel = inputs[0].size
        column = columns_of(name, numel)
        sent = [quantize(each, column) for each in inputs]
        left = [each - said for each, said in zip(inputs, sent, strict=True)]
        average = np.zeros(numel, np.float64)
        for owner, start, stop in runs_of(
            numel, found[0]["runs"][name], size, column if in_columns else 1
        ):
            at = slice(start, stop)
            total = np.zeros(stop - start, np.float32)
            for rank in every:
                total += sent[rank][at]
            again = quantize(total, column)
            average[at] = again / np.float32(size)
            left[owner][at] += total - again
            # Where a range begins within a column, a part is two frames.
            first = min(-start % column, stop - start) if in_columns else 0
            whole = nbytes(stop - start - first, column) if stop - start > first else 0
            parts[name][:, owner] += whole + (nbytes(first, column) if first else 0)
            made[name][owner] += nbytes(stop - start, column)
        for rank in every:
            np.testing.assert_array_equal(found[rank]["average"][name], average, err_msg=name)
            np.testing.assert_array_equal(found[rank]["after"][name], left[rank], err_msg=name)
    for rank in every:
        check_bytes(rank, found[rank], parts, made)


@pytest.mark.parametrize("size", [2, 3, *(pytest.param(n, marks=pytest.mark.full) for n in (4, 8))])
def test_every_bit_and_every_byte_is_that_of_a_plain_model(size, kept):
    for kind, (codec, *_) in PLAIN.items():
        results = kept(size, "cpu").run(steps, codec=codec, scale=77)
        for step in zip(*results, strict=True):
            check_step(list(step), kind)
        assert any(each.any() for each in results[0][-1]["after"].values())


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
