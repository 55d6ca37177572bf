"""Integers that cross into the extension: any of them is an answer or an error that says why."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradwire
from gradwire import _native
from gradwire._native import Frame, State
from gradwire.memory import NoMemory

HOSTILE = (-1, -(2**40), 2**31, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**100)
NOT_INTEGERS = (1.0, float("nan"), np.float64(1.0), "1", b"1", [1], object())

CODEC = gradwire.topk(0.1)
NATIVE = CODEC._codec
PLAIN = gradwire.topk(0.1, memory=NoMemory())
FORGETFUL = PLAIN._codec
N = 100
X = np.arange(N, dtype=np.float32)
LIMIT = CODEC.max_encoded_len(N)


def encoded() -> Frame:
    return CODEC.encode(X, CODEC.init_state(N))


def piece() -> np.ndarray:
    return np.frombuffer(bytes(encoded()), np.uint8).copy()


def encode_bucket(ends: Any = (0, N), limits: Any = (LIMIT,)) -> Any:
    state = CODEC.init_state(N)
    out = np.zeros(LIMIT, np.uint8)
    return _native.encode_bucket(X, 1.0, [NATIVE], [state], list(ends), list(limits), [], out)


def average_bucket(start: Any = 0, size: Any = None, ends: Any = (0, N), ranks: Any = 1) -> Any:
    data, out = piece(), np.zeros(N, np.float32)
    sizes = [[len(data) if size is None else size]]
    options = (1.0, False, False, ranks)
    _native.average_bucket(data, [start], sizes, list(ends), [False], out, *options)
    return out


def split_bucket(
    size: Any = None, bounds: Any = (0, 50, N), owners: Any = (0, 1), ranks: Any = 2
) -> Any:
    data = piece()
    size = len(data) if size is None else size
    return _native.split_bucket(data, [size], [list(bounds)], [list(owners)], ranks)


def merge_bucket(starts: Any = (0,), ends: Any = (0, N)) -> Any:
    state = CODEC.init_state(N)
    CODEC.encode(X, state)
    message = bytes(encoded())
    return _native.merge_bucket([message], list(starts), [NATIVE], [state], list(ends), [False])


def packed() -> bytes:
    return _native.pack_positions(encoded())


CALLS: dict[str, Callable[[Any], Any]] = {
    "Frame, max_numel": lambda value: Frame(bytes(encoded()), value),
    "Frame.split": lambda value: encoded().split([0, value]),
    "Frame.split, first": lambda value: encoded().split([value, N]),
    "State, numel": lambda value: State(NATIVE, value),
    "State, stream": lambda value: State(NATIVE, 10, None, value),
    "init_state": CODEC.init_state,
    "encode": lambda value: FORGETFUL.encode(X, None, value),
    "encode_into": lambda value: FORGETFUL.encode_into(X, None, bytearray(LIMIT), value),
    "encode_at": lambda value: FORGETFUL.encode_at(X, None, np.array([1], np.uint32), value),
    "encode_at_into": lambda value: FORGETFUL.encode_at_into(
        X, None, np.array([1], np.uint32), bytearray(LIMIT), value
    ),
    "cut_step": lambda value: NATIVE.cut_step(value),
    "max_encoded_len": lambda value: NATIVE.max_encoded_len(value),
    "max_encoded_len, count": lambda value: NATIVE.max_encoded_len(N, value),
    "Codec.encode": lambda value: PLAIN.encode(X, max_nbytes=value),
    "Codec.max_encoded_len": CODEC.max_encoded_len,
    "decode": lambda value: gradwire.decode(bytes(encoded()), max_numel=value),
    "native decode": lambda value: _native.decode(bytes(encoded()), None, value),
    "unpack_positions": lambda value: _native.unpack_positions(packed(), value),
    "encode_bucket, begin": lambda value: encode_bucket(ends=(value, N)),
    "encode_bucket, end": lambda value: encode_bucket(ends=(0, value)),
    "encode_bucket, limit": lambda value: encode_bucket(limits=(value,)),
    "average_bucket, start": lambda value: average_bucket(start=value),
    "average_bucket, size": lambda value: average_bucket(size=value),
    "average_bucket, begin": lambda value: average_bucket(ends=(value, N)),
    "average_bucket, end": lambda value: average_bucket(ends=(0, value)),
    "average_bucket, ranks": lambda value: average_bucket(ranks=value),
    "split_bucket, size": lambda value: split_bucket(size=value),
    "split_bucket, bound": lambda value: split_bucket(bounds=(0, value, N)),
    "split_bucket, last": lambda value: split_bucket(bounds=(0, 50, value)),
    "split_bucket, owner": lambda value: split_bucket(owners=(0, value)),
    "split_bucket, ranks": lambda value: split_bucket(ranks=value),
    "merge_bucket, start": lambda value: merge_bucket(starts=(value,)),
    "merge_bucket, begin": lambda value: merge_bucket(ends=(value, N)),
    "merge_bucket, end": lambda value: merge_bucket(ends=(0, value)),
    "read_bucket": lambda value: _native.read_bucket(piece(), [value], True),
    "set_num_threads": gradwire.set_num_threads,
}


@pytest.mark.parametrize("name", CALLS)
def test_an_integer_out_of_range_is_told_by_its_type(name: str) -> None:
    for value in HOSTILE:
        try:
            CALLS[name](value)
        except (ValueError, TypeError, MemoryError, gradwire.GradwireError):
            pass
        except BaseException as error:
            pytest.fail(f"{value}: {type(error).__name__}: {error}")


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_integer_is_told_by_its_type(name: str) -> None:
    for value in NOT_INTEGERS:
        with pytest.raises(TypeError):
            CALLS[name](value)


@pytest.mark.parametrize("name", CALLS)
def test_integers_of_numpy_are_integers(name: str) -> None:
    def answer(value: Any) -> str:
        try:
            return str(CALLS[name](value))
        except (ValueError, gradwire.GradwireError) as error:
            return str(error)

    before = gradwire.get_num_threads()
    try:
        assert answer(np.uint16(7)).partition(" at 0x")[0] == answer(7).partition(" at 0x")[0]
    finally:
        gradwire.set_num_threads(before)


def test_errors_name_the_argument() -> None:
    with pytest.raises(ValueError, match=r"bounds is out of range, got \[-1, 100\]"):
        encoded().split([-1, N])
    with pytest.raises(ValueError, match="ranks must be at most 1048576, got 1099511627776"):
        split_bucket(ranks=2**40)
    with pytest.raises(TypeError, match="limits: "):
        encode_bucket(limits=(1.0,))
