"""Patches of models: encoded, applied all or nothing, and named by checksums."""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from typing import Any

from gradwire import _native
from gradwire.delta.tensors import (
    Buffer,
    Tensors,
    check_kinds,
    copy,
    distinct,
    kinds,
    pieces,
    tensors_of,
)
from gradwire.errors import (
    BaseMismatchError,
    CorruptFrameError,
    TruncatedFrameError,
    UnsupportedFrameError,
)

_MAGIC, _VERSION = b"GWDL", 1
_START = 21
"""Bytes before the blocks: magic number, version, and a digest of 16 bytes."""
_CHECKSUM = 4


def encode(base: Any, new: Any) -> bytes:
    """Return what makes ``new`` of ``base``, to the bit.

    Arrays are read in place; from devices, 8 MiB are copied at a time.

    Parameters
    ----------
    base, new : mapping of str to array or tensor, array, tensor or torch.nn.Module
        Models of the same names, dtypes and shapes: any dtypes that safetensors files can hold, in
        row-major order. Tied tensors of ``new``, with one memory, count once, by their first name
        in alphabetical order.

    Returns
    -------
    bytes
        The patch, which names its base and its result by checksums.

    Raises
    ------
    ValueError
        The models are not alike; a tensor is not contiguous, or shares memory with another in part.
    TypeError
        A value is no array or tensor of such a dtype.
    """
    values, old = tensors_of(new), tensors_of(base)
    check_kinds(old, values)
    return _encoded(old, distinct(values))


def _encoded(base: Tensors, new: Tensors) -> bytes:
    parts = [_MAGIC, bytes([_VERSION]), _description(new)]
    buffer = Buffer(new)
    other = buffer if base is new else Buffer(base)
    for entries, piece in pieces(new, base):
        values = buffer.gather(piece)
        old = values if other is buffer else other.gather(piece)
        parts.append(_native.patch_encode(entries, values, old))
    check = 0
    for part in parts:
        check = _native.crc32c(part, check)
    return b"".join([*parts, check.to_bytes(_CHECKSUM, "little")])


def _description(tensors: Tensors) -> bytes:
    """Return the digest of names, dtypes and shapes."""
    text = json.dumps(kinds(tensors), separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()[:16]


def apply(base: Any, patch: Any, out: Any = None) -> None:
    """Make what a patch was made for of its base: all of it, or nothing.

    The base is compared with the patch's checksums before a byte changes, and the result after.
    That takes some 20 MiB, and 8 bytes for each float that moves far, by powers of two.

    Parameters
    ----------
    base : mapping of str to array or tensor, array, tensor or torch.nn.Module
        As in `encode`; changed in place, unless there is ``out``. Tied tensors count once.
    patch : bytes-like
        From `encode`.
    out : as base, optional
        Gets the result, and `base` is unchanged. Of the same names, dtypes and shapes.

    Raises
    ------
    BaseMismatchError
        The patch was made from another base; or it was already applied.
    CorruptFrameError, TruncatedFrameError
        The patch is damaged, or cut.
    UnsupportedFrameError
        The patch is of a newer version.
    ValueError, TypeError
        As of `encode`; a tensor is read-only.

    All of them, and any other exception, as of Ctrl-C, leave ``base`` as it was; ``out`` then holds
    anything, unless the patch was refused.
    """
    old = new = tensors_of(base)
    if out is not None:
        check_kinds(old, new := tensors_of(out))
    with applied(distinct(new), patch, None if out is None else old):
        pass


@contextlib.contextmanager
def applied(model: Tensors, patch: Any, base: Tensors | None = None) -> Iterator[None]:
    """Apply a patch for a block: after an exception there, the model is as it was."""
    data, steps = _blocks(patch), []
    if data[:16] != _description(model):
        raise BaseMismatchError("the base has tensors of other names, dtypes or shapes")
    source = Buffer(base or model)
    rest = data[16:]
    for entries, piece in pieces(model, base or model):
        same, used = _native.patch_check(entries, rest, source.gather(piece))
        if not same:
            others = f", or in {len(piece) - 1} tensors after it" if len(piece) > 1 else ""
            raise BaseMismatchError(
                f"the patch has another base: it differs in {piece[0][0]!r}{others}"
            )
        steps.append((entries, piece, rest[:used]))
        rest = rest[used:]
    if rest:
        raise CorruptFrameError(f"{len(rest)} bytes follow the blocks of the patch")
    if base is not None:
        copy(base, model)
    buffer, complete = Buffer(model), 0
    undos: list[tuple[int, _native.PatchUndo]] = []
    try:
        for entries, piece, blocks in steps:
            values = buffer.gather(piece)
            # No signal is handled before the undo is in the list, as it could be after a call.
            undos.extend(map(_native.patch_apply, [entries], [blocks], [values]))
            buffer.scatter(piece, values)
            complete += 1
        yield
    except BaseException:
        while undos:
            _, piece, blocks = steps[len(undos) - 1]
            if len(undos) <= complete:  # otherwise it is gathered, and in part written
                values = buffer.gather(piece)
            undos[-1][1](blocks, values)
            buffer.scatter(piece, values)
            undos.pop()
        raise


def _blocks(patch: Any) -> memoryview:
    """Return what is between version and checksum of a patch, which is not damaged."""
    data = memoryview(patch).cast("B")
    if data[:4] != _MAGIC[: len(data)]:
        raise CorruptFrameError("it is no patch: these begin with GWDL")
    if len(data) < _START + _CHECKSUM:
        raise TruncatedFrameError("a patch", _START + _CHECKSUM, len(data))
    if data[4] != _VERSION:
        raise UnsupportedFrameError("patch version", data[4])
    if _native.crc32c(data[:-_CHECKSUM]) != int.from_bytes(data[-_CHECKSUM:], "little"):
        raise CorruptFrameError("the checksum of the patch does not match: it is damaged or cut")
    return data[_START - 16 : -_CHECKSUM]


def digest(model: Any) -> str:
    """Return what tells a model from others: models of the same bits have the same digest.

    Parameters
    ----------
    model : mapping of str to array or tensor, array, tensor or torch.nn.Module
        As in `encode`.

    Returns
    -------
    str
        32 hexadecimal digits, of names, dtypes, shapes and checksums of the values. It detects
        faults, not forgery.

    Raises
    ------
    ValueError, TypeError
        As of `encode`.
    """
    tensors = distinct(tensors_of(model))
    return digests(_encoded(tensors, tensors))[0]


def digests(patch: Any) -> tuple[str, str]:
    """Return the `digest` of the base and of the result of a patch.

    Parameters
    ----------
    patch : bytes-like
        From `encode`.

    Returns
    -------
    tuple of str
        Patches follow one another if the result of one is the base of the next one.

    Raises
    ------
    CorruptFrameError, TruncatedFrameError, UnsupportedFrameError
        As of `apply`.
    """
    data, at = _blocks(patch), 16
    base, result = hashlib.sha256(data[:16]), hashlib.sha256(data[:16])
    while at < len(data):
        base.update(data[at + 4 : at + 8])
        result.update(data[at + 8 : at + 12])
        at += 4 + int.from_bytes(data[at : at + 4], "little")
    return base.hexdigest()[:32], result.hexdigest()[:32]
