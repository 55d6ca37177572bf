"""The compiled part of the package."""

from collections.abc import Callable, Sequence
from typing import Any, Final, Self, TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer, disjoint_base

import gradwire._codec

__all__ = [
    "DEFAULT_MAX_NUMEL",
    "VERSION",
    "Codec",
    "Frame",
    "PatchUndo",
    "ReadOnlyBuffer",
    "State",
    "at_level",
    "average_bucket",
    "crc32c",
    "decode",
    "decode_add",
    "encode_bucket",
    "environment_complaints",
    "get_num_threads",
    "gram_errors",
    "lossless_decode",
    "lossless_encode",
    "merge_bucket",
    "pack_positions",
    "packed_check",
    "packed_error",
    "packed_further",
    "packed_join",
    "packed_linear",
    "packed_of_codes",
    "packed_rows",
    "packed_take",
    "packed_with_codes",
    "patch_apply",
    "patch_check",
    "patch_encode",
    "read_bucket",
    "set_num_threads",
    "simd_level",
    "solve_comq",
    "solve_gptq",
    "solve_magr",
    "split_bucket",
    "unpack_positions",
]

_BytesLike: TypeAlias = Buffer | NDArray[np.uint8]
_Kept: TypeAlias = NDArray[np.float32] | NDArray[np.uint16] | None
_WritableBytes: TypeAlias = bytearray | memoryview | NDArray[np.uint8]

DEFAULT_MAX_NUMEL: Final[int]
VERSION: Final[str]

@disjoint_base
class ReadOnlyBuffer:
    # Type checkers recognize the buffer protocol by this method; at runtime it exists from 3.12 on.
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Frame(ReadOnlyBuffer):
    def __new__(cls, data: _BytesLike, max_numel: int | None = None) -> Self: ...
    @property
    def numel(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    def indices(self) -> NDArray[np.uint32]: ...
    def values(self) -> NDArray[np.float32]: ...
    def split(self, bounds: Sequence[int]) -> list[list[Frame]]: ...
    def header(self) -> dict[str, Any]: ...
    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[Any, ...]: ...

@disjoint_base
class State:
    def __new__(
        cls, codec: Codec, numel: int, name: str | None = None, stream: int | None = None
    ) -> Self: ...
    @property
    def codec(self) -> gradwire._codec.Codec: ...
    @property
    def numel(self) -> int: ...
    @property
    def name(self) -> str | None: ...
    @property
    def stream(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def residual(self) -> NDArray[np.float32] | None: ...
    @property
    def residual_norm(self) -> float | None: ...
    @property
    def momentum(self) -> NDArray[np.float32] | None: ...
    @property
    def second_moment(self) -> NDArray[np.float32] | None: ...
    @property
    def estimate(self) -> NDArray[np.float32] | None: ...
    @property
    def learning_rate(self) -> float | None: ...
    @learning_rate.setter
    def learning_rate(self, learning_rate: float) -> None: ...
    @property
    def last(self) -> dict[str, Any] | None: ...
    def rollback(self) -> None: ...
    def deliver(self, mean: NDArray[np.float32], scale: float = 1.0) -> None: ...
    def _lift(self, start: int, stop: int) -> NDArray[np.float32]: ...
    def _lower(self, start: int, lifted: NDArray[np.float32], step: int) -> None: ...
    def reset(self) -> None: ...
    def _get(self) -> tuple[dict[str, _Kept], dict[str, float]]: ...
    def _set(
        self,
        codec: Codec,
        arrays: dict[str, _Kept],
        scalars: dict[str, float],
    ) -> None: ...

@final
class Codec:
    def __new__(
        cls,
        config: dict[str, Any],
        owner: object,
        values: object | None = None,
    ) -> Self: ...
    def encode(
        self,
        x: NDArray[Any],
        state: State | None = None,
        max_nbytes: int | None = None,
        bfloat16: bool = False,
        kept: list[Any] | None = None,
    ) -> Frame: ...
    def encode_into(
        self,
        x: NDArray[Any],
        state: State | None,
        out: _WritableBytes,
        max_nbytes: int | None = None,
        bfloat16: bool = False,
        kept: list[Any] | None = None,
    ) -> int: ...
    def encode_at(
        self,
        x: NDArray[Any],
        state: State | None,
        positions: NDArray[np.uint32],
        max_nbytes: int | None = None,
        bfloat16: bool = False,
        may_trim: bool = False,
        kept: list[Any] | None = None,
    ) -> Frame: ...
    def encode_at_into(
        self,
        x: NDArray[Any],
        state: State | None,
        positions: NDArray[np.uint32],
        out: _WritableBytes,
        max_nbytes: int | None = None,
        bfloat16: bool = False,
        may_trim: bool = False,
        kept: list[Any] | None = None,
    ) -> int: ...
    def preview(
        self, x: NDArray[Any], state: State | None = None, bfloat16: bool = False
    ) -> NDArray[np.float32]: ...
    def flush(self, state: State, kept: list[Any] | None = None) -> Frame: ...
    def retract(self, state: State | None, error: BaseException, kept: list[Any]) -> None: ...
    def cut_step(self, numel: int) -> int: ...
    def max_encoded_len(self, numel: int, count: int | None = None) -> int: ...
    def same_kind(self, other: Codec) -> bool: ...

def decode(
    frame: _BytesLike, out: NDArray[np.float32] | None = None, max_numel: int | None = None
) -> NDArray[np.float32]: ...
def decode_add(frame: _BytesLike, out: NDArray[np.float32], scale: float | None = None) -> None: ...
def pack_positions(frame: Frame) -> bytes: ...
def unpack_positions(data: _BytesLike, numel: int) -> NDArray[np.uint32]: ...
def encode_bucket(
    x: NDArray[Any],
    scale: float,
    codecs: Sequence[Codec],
    states: Sequence[State],
    ends: Sequence[int],
    limits: Sequence[int],
    positions: Sequence[NDArray[np.uint32] | None],
    out: NDArray[np.uint8],
    bfloat16: bool = False,
) -> tuple[NDArray[np.int64], Exception | None]: ...

@final
class PatchUndo:
    def __call__(self, patch: _BytesLike, out: _WritableBytes) -> None: ...

def average_bucket(
    data: NDArray[np.uint8],
    starts: Sequence[int],
    sizes: Sequence[Sequence[int]],
    ends: Sequence[int],
    unused: Sequence[bool],
    out: NDArray[Any],
    scale: float,
    senders: bool,
    bfloat16: bool = False,
    ranks: int | None = None,
) -> NDArray[np.int64]: ...
def split_bucket(
    data: NDArray[np.uint8],
    sizes: Sequence[int],
    bounds: Sequence[Sequence[int]],
    owners: Sequence[Sequence[int]],
    ranks: int,
) -> list[NDArray[np.uint8]]: ...
def merge_bucket(
    messages: Sequence[_BytesLike],
    starts: Sequence[int],
    codecs: Sequence[Codec],
    states: Sequence[State],
    ends: Sequence[int],
    unused: Sequence[bool],
) -> tuple[NDArray[np.uint8], NDArray[np.int64], Exception | None]: ...
def crc32c(data: _BytesLike, before: int | None = None) -> int: ...
def lossless_decode(
    format: str, coded: _BytesLike, out: _WritableBytes, difference: bool
) -> int: ...
def lossless_encode(
    format: str, values: _BytesLike, out: _WritableBytes, base: _BytesLike | None = None
) -> int: ...
def patch_apply(format: str, patch: _BytesLike, out: _WritableBytes) -> tuple[int, PatchUndo]: ...
def patch_check(format: str, patch: _BytesLike, base: _BytesLike) -> tuple[bool, int]: ...
def patch_encode(format: str, values: _BytesLike, base: _BytesLike) -> bytes: ...
def packed_error(
    frame: _BytesLike, values: NDArray[np.float32], decoded: NDArray[np.float32] | None = None
) -> float: ...
def packed_further(frame: _BytesLike, values: NDArray[np.float32], more: int) -> bytes: ...
def packed_join(frame: _BytesLike, further: _BytesLike, more: int) -> bytes: ...
def packed_linear(
    frame: _BytesLike,
    rows: int,
    cols: int,
    x: NDArray[np.float32],
    out: NDArray[np.float32],
    activations: str,
) -> None: ...
def packed_check(frame: _BytesLike) -> int: ...
def packed_of_codes(
    values: NDArray[np.float32],
    config: dict[str, Any],
    codes: _BytesLike,
    steps: NDArray[np.float32],
    bases: NDArray[np.float32],
) -> bytes: ...
def packed_rows(
    frame: _BytesLike,
    cols: int,
    start: int,
    count: int,
    out: NDArray[np.float32] | NDArray[np.uint16],
) -> None: ...
def packed_take(
    frame: _BytesLike,
    cols: int,
    indices: NDArray[np.int64],
    out: NDArray[np.float32] | NDArray[np.uint16],
) -> None: ...
def packed_with_codes(
    frame: _BytesLike,
    codes: _BytesLike,
    steps: NDArray[np.float32],
    bases: NDArray[np.float32],
) -> bytes: ...
def read_bucket(
    data: NDArray[np.uint8], sizes: Sequence[int], positions: bool
) -> tuple[NDArray[np.float32], NDArray[np.uint32]]: ...
def set_num_threads(count: int) -> None: ...
def get_num_threads() -> int: ...
def simd_level() -> str: ...
def at_level(level: str, act: Callable[..., Any], *args: Any) -> Any: ...
def solve_comq(
    weights: NDArray[np.float32],
    gram: NDArray[np.float64],
    config: dict[str, Any],
    damp: float,
    sweeps: int,
    start: str,
    bases: bool,
) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32]]: ...
def solve_gptq(
    weights: NDArray[np.float32],
    gram: NDArray[np.float64],
    config: dict[str, Any],
    damp: float,
) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32]]: ...
def solve_magr(
    weights: NDArray[np.float32],
    gram: NDArray[np.float64],
    block: int,
    alpha: float,
    steps: int,
) -> NDArray[np.float32]: ...
def gram_errors(
    weights: NDArray[np.float32],
    decoded: NDArray[np.float32],
    gram: NDArray[np.float64],
) -> tuple[float, float]: ...
def environment_complaints() -> list[str]: ...
