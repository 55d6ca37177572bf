"""One frame from a file or a pipe: never more of it than its header says there is."""

import io
import sys
from pathlib import Path
from typing import BinaryIO

from gradwire import Frame
from gradwire._validate import MAX_NUMEL
from gradwire.errors import CorruptFrameError, TruncatedFrameError

__all__ = ["read_frame"]

_HEADER_NBYTES = 48
_NUMEL = slice(16, 24)
_PIECE = 1 << 20

# No coding takes more: 4.2 bytes for a position, 4 for a value, 8 for a block of a single entry;
# and parameters of a few kilobytes.
_MOST_PER_ELEMENT, _MOST_BESIDE = 17, 1 << 16


def read_frame(file: str) -> Frame:
    """Read one frame, header first; ``-`` is standard input.

    Memory stays in proportion to the bytes that are there, whatever they claim.

    Raises
    ------
    OSError
        The file cannot be read.
    GradwireError
        What is in it is not one frame; an endless source is found out by its header.
    """
    if file == "-":
        return _read(sys.stdin.buffer)
    with Path(file).open("rb") as source:
        return _read(source)


def _read(source: BinaryIO) -> Frame:
    head = _up_to(source, _HEADER_NBYTES)
    try:
        frame = Frame(head, max_numel=MAX_NUMEL)
    except TruncatedFrameError as error:
        if len(head) < _HEADER_NBYTES:
            raise
        need = error.need
    else:
        need = frame.nbytes
    _check_length(head, need)
    data = head + _up_to(source, need - len(head))
    if source.read(1):
        raise CorruptFrameError(f"more bytes follow the frame, which has {need}")
    return Frame(data, max_numel=MAX_NUMEL)


def _check_length(head: bytes, need: int) -> None:
    numel = int.from_bytes(head[_NUMEL], "little")
    if numel > MAX_NUMEL:
        raise CorruptFrameError(f"it claims {numel} elements, at most {MAX_NUMEL} are possible")
    most = _MOST_PER_ELEMENT * numel + _MOST_BESIDE
    if need > most:
        raise CorruptFrameError(f"it claims {need} bytes for {numel} elements, which take {most}")


def _up_to(source: BinaryIO, count: int) -> bytes:
    data = io.BytesIO()
    while (left := count - data.tell()) > 0 and (piece := source.read(min(left, _PIECE))):
        data.write(piece)
    return data.getvalue()
