"""Read one frame from a file or a pipe, and no more bytes than its header announces."""

import io
import sys
from pathlib import Path
from typing import BinaryIO

from gradwire import Frame
from gradwire._validate import MAX_NUMEL
from gradwire.errors import CorruptFrameError, TruncatedFrameError

__all__ = ["read_frame"]

_HEADER_NBYTES = 48
_QUANTIZER_AND_CODING = slice(7, 9)
_NUMEL = slice(16, 24)
_PIECE = 1 << 20

# Upper bound for every coding, in bytes: per element 4.2 for the position, 4 for the value and 8
# for a block of one entry; plus a few kilobytes of parameters.
_MOST_PER_ELEMENT, _MOST_BESIDE = 17, 1 << 16
# Parts of other packages code a section in as many bytes as they like.
_OUTSIDE, _MOST_OUTSIDE = 255, 1 << 30


def read_frame(file: str) -> Frame:
    """Read one frame, header first; ``-`` is standard input.

    Memory use is proportional to the bytes actually read, whatever the header claims.

    Raises
    ------
    OSError
        The file cannot be read.
    GradwireError
        The source is not exactly one frame. The header alone exposes an endless source.
    ValueError
        It claims to be a frame of another package's part, and to have more than 1 GiB.
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
        raise CorruptFrameError(f"the frame ends after {need} bytes, but more follow")
    return Frame(data, max_numel=MAX_NUMEL)


def _check_length(head: bytes, need: int) -> None:
    numel = int.from_bytes(head[_NUMEL], "little")
    if numel > MAX_NUMEL:
        raise CorruptFrameError(f"the header claims {numel} elements; the limit is {MAX_NUMEL}")
    most = _MOST_PER_ELEMENT * numel + _MOST_BESIDE
    if _OUTSIDE in head[_QUANTIZER_AND_CODING]:
        if need > max(most, _MOST_OUTSIDE):
            raise ValueError(
                f"a frame of {need} bytes, which a part of another package has coded; at most "
                f"{max(most, _MOST_OUTSIDE)} are read"
            )
        return
    if need > most:
        raise CorruptFrameError(
            f"the header claims {need} bytes for {numel} elements; the limit is {most}"
        )


def _up_to(source: BinaryIO, count: int) -> bytes:
    data = io.BytesIO()
    while (left := count - data.tell()) > 0 and (piece := source.read(min(left, _PIECE))):
        data.write(piece)
    return data.getvalue()
