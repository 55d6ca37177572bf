"""The quantized all-reduce over real processes, beside a plain model of it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.distributed.plain_owners import check_bytes, runs_of
from tests.distributed.ranks import Nursery, Ranks
from tests.distributed.test_parity import check_conservation

SEVERAL = {"bucket_cap_mb": 0.01}
OWNERS = {"exchange": "QuantizedAllReduce"}
EXACT = {"memory": "Residual", **OWNERS}
DENSE: dict[str, tuple[str, dict[str, Any]]] = {
    "onebit": ("onebit", OWNERS),
    "qsgd": ("qsgd", OWNERS),
    "terngrad": ("terngrad", OWNERS),
    "float8": ("float8", OWNERS),
    "signsgd": ("signsgd", OWNERS),
    "natural": ("natural", OWNERS),
    "bfloat16": ("dense", {"quantize": "BFloat16", **OWNERS}),
}
EVERY = DENSE | {
    "adaptive": ("adaptive", OWNERS),
    "kept": ("onebit", {"memory": {"kind": "residual", "low_memory": True}, **OWNERS}),
    "decayed": ("signsgd", {"memory": {"kind": "low_pass", "beta": 0.5}, **OWNERS}),
    "qsgd-kept": ("qsgd", {"norm": "max", **EXACT}),
}


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
PLAIN: dict[str, tuple[tuple[str, dict[str, Any]], Quantize, Callable[[int, int], int], bool]] = {
    "onebit": (("onebit", OWNERS), onebit, onebit_nbytes, True),
    "signsgd": (("signsgd", OWNERS), signs, signs_nbytes, False),
    "bfloat16": (("dense", {"quantize": "BFloat16", **EXACT}), bfloat16, halves_nbytes, False),
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
def test_every_bit_and_every_byte_is_that_of_a_plain_model(
    size: int, kept: Callable[[int, str], Ranks], nursery: Nursery
) -> None:
    chosen = kept(size, "cpu") if size < 8 else Ranks(nursery, size)
    for kind, (codec, *_) in PLAIN.items():
        results = chosen.run("scattered.steps", codec=codec, scale=77)
        for step in zip(*results, strict=True):
            check_step(list(step), kind)
        assert any(each.any() for each in results[0][-1]["after"].values())
    if size == 8:
        chosen.stop()


@pytest.mark.full
def test_replicas_are_bit_identical_and_a_second_run_has_the_same_bits(
    two: Ranks, three: Ranks
) -> None:
    codecs = list(EVERY.values())
    once, again, more = (
        ranks.run("scattered.replicas", codecs=codecs, ddp=SEVERAL) for ranks in (two, two, three)
    )
    assert once == again
    for found in (once, more):
        for rank in found:
            assert rank == found[0]
        assert len(set(found[0])) == len(EVERY)


@pytest.mark.parametrize("kind", ["onebit", "signsgd", "qsgd-kept", "adaptive", "float8"])
def test_nothing_is_lost(two: Ranks, three: Ranks, kind: str) -> None:
    name, options = EVERY[kind]
    if kind == "float8":
        options = EXACT
    for ranks in (two, three):
        results = ranks.run("parity.conservation", ddp=SEVERAL, options={}, codec=(name, options))
        check_conservation(results, tolerance=2e-3)


@pytest.mark.full
def test_without_a_memory_sums_are_right_on_average(three: Ranks) -> None:
    for kind in ("qsgd", "natural"):
        name, options = EVERY[kind]
        found = three.run("scattered.drawn", codec=(name, options), times=150)
        for rank in found:
            np.testing.assert_array_equal(rank["sum"], found[0]["sum"])
            np.testing.assert_array_equal(rank["squares"], found[0]["squares"])
        mean = found[0]["sum"] / 150
        deviation = np.sqrt(np.maximum(found[0]["squares"] / 150 - mean**2, 0) / 150)
        expected = found[0]["expected"]
        off = mean - expected
        # As far off as such a mean is by chance: all together, and in the direction of the sums,
        # where a bias would add up.
        assert 0.8 < np.sqrt((off**2).mean() / (deviation**2).mean()) < 1.2
        assert abs(off @ expected) < 5 * np.sqrt(deviation**2 @ expected**2)


def test_modes_of_training_work_with_a_codec_by_name(two: Ranks) -> None:
    results = two.run("scattered.in_modes", codecs=[EVERY["onebit"], EVERY["qsgd"]])
    for found in results:
        assert found == results[0]
        assert found["several"] != found["accumulated"]
