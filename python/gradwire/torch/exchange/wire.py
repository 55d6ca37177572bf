"""Messages in which ranks tell each other whether their part of a bucket succeeded.

A message begins with a header of 56 bytes: magic bytes, version, status, CRC-32 of the bucket's
contents, number of the bucket, bytes that follow, and the checksum of an earlier average. After a
failure, the error follows as far as there is room for it. All ranks read the messages of all ranks,
and raise the same error.

Exchanges that sum values have no message of each rank. They sum `Flags` along with the values, and
gather messages only if these report a failure (`share_failure`).
"""

import contextlib
import enum
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.errors import ExchangeError, GradientError, kind_of
from gradwire.torch.transport import Channel, Work

Bytes: TypeAlias = NDArray[np.uint8]

# Magic, version, status, contents' digest, sequence, nbytes; an average's sequence, scale, sum.
_HEADER = struct.Struct("<3sBB3xI4xQQQdQ")
_BEGIN = struct.Struct("<3sBB3xI4xQ")  # of that, up to the sequence
_ERROR = struct.Struct("<QQi4x")  # non-finite entries, position of the first, rank or -1
_MAGIC, _VERSION = b"GWV", 2

HEADER_NBYTES = _HEADER.size
MESSAGE_NBYTES = 1024  # of a message with room for a readable error
ALL_BITS = 2**64 - 1  # of a checksum
TEXT_NBYTES = MESSAGE_NBYTES - HEADER_NBYTES - _ERROR.size  # of that


class _Status(enum.IntEnum):
    OK = 0
    NON_FINITE = 1
    FAILED = 2


class Checksum(NamedTuple):
    """A sum over the bits of an average, modulo 2**64."""

    number: int = 0  # one more than that of its bucket; 0 for none
    scale: float = 0.0  # the loss scale in it
    total: int = 0


_NO_CHECKSUM = Checksum()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The content of a message: whether one rank's part of a bucket succeeded."""

    nbytes: int  # that the rank announces, if it could
    failed: bool = False
    error: ExchangeError | GradientError | None = None  # if the message had room for that
    checksum: Checksum = _NO_CHECKSUM


def attributed(
    error: BaseException | None, rank: int, act: str = "encode"
) -> ExchangeError | GradientError | None:
    """Return the error of the rank that failed, in the form that all ranks raise."""
    if error is None or (isinstance(error, ExchangeError) and error.rank is not None):
        return error  # which tells the rank itself
    if isinstance(error, GradientError):
        return GradientError(error.count, error.first, error.name, rank)
    text = f"rank {rank} could not {act}: {type(error).__name__}: {error}"
    return ExchangeError(text, rank)


def write_verdict(
    out: Bytes,
    digest: int,
    sequence: int,
    error: BaseException | None = None,
    nbytes: int = 0,
    checksum: Checksum = _NO_CHECKSUM,
) -> None:
    """Write a header and, after a failure, as much of the error as there is room for.

    ``out`` has room for at least `HEADER_NBYTES`. The digest is that of the contents, or 0 if ranks
    have different contents of a bucket. Without an error, ``nbytes`` bytes are announced.
    """
    status, body = _Status.OK, b""
    if error is not None:
        bad = isinstance(error, GradientError)
        status = _Status.NON_FINITE if bad else _Status.FAILED
        body = _pack_error(error, out.size - HEADER_NBYTES)
        nbytes = len(body)
    _HEADER.pack_into(out.data, 0, _MAGIC, _VERSION, status, digest, sequence, nbytes, *checksum)
    out[HEADER_NBYTES : HEADER_NBYTES + len(body)] = np.frombuffer(body, np.uint8)


def header_words(digest: int, sequence: int, checksum: Checksum = _NO_CHECKSUM) -> tuple[int, ...]:
    """Return the header of `write_verdict` without an error, as signed words of eight bytes."""
    packed = _HEADER.pack(_MAGIC, _VERSION, _Status.OK, digest, sequence, 0, *checksum)
    return struct.unpack("<7q", packed)


def _pack_error(error: BaseException, room: int) -> bytes:
    if room < _ERROR.size:
        return b""
    if isinstance(error, GradientError):
        head, text = (error.count, error.first, error.rank), str(error.name)
    else:
        rank = error.rank if isinstance(error, ExchangeError) else None
        head, text = (0, 0, -1 if rank is None else rank), str(error)
        if not isinstance(error, ExchangeError):
            text = f"{type(error).__name__}: {text}"
    cut = text.encode(errors="replace")[: room - _ERROR.size].decode(errors="ignore")
    return _ERROR.pack(*head) + cut.encode()


def read_verdict(message: Bytes, rank: int, digest: int, sequence: int) -> Verdict:
    """Read the message that `write_verdict` wrote on a rank.

    Raises an ExchangeError if the message is damaged or of another version, or the rank is at
    another bucket.
    """
    if message.size < HEADER_NBYTES:
        raise ExchangeError(f"the message of rank {rank} has {message.size} bytes", rank)
    magic, version, status, theirs, number, nbytes, *checksum = _HEADER.unpack_from(message.data)
    if magic == _MAGIC and version != _VERSION:
        raise ExchangeError(
            f"rank {rank} has another version of gradwire: its messages have version {version}, "
            f"but this rank's have {_VERSION}; install the same version on all ranks",
            rank,
        )
    if magic != _MAGIC or status > _Status.FAILED:
        raise _foreign(rank)
    if (theirs, number) != (digest, sequence):
        raise ExchangeError(
            f"rank {rank} is at bucket {number}, but this rank is at bucket {sequence}, with "
            f"{'the same' if theirs == digest else 'different'} parameters: the ranks did not run "
            "the same backward passes",
            rank,
        )
    if status == _Status.OK:
        return Verdict(nbytes, checksum=Checksum(*checksum))
    if not nbytes:
        return Verdict(0, True)
    if not _ERROR.size <= nbytes <= message.size - HEADER_NBYTES:
        raise _foreign(rank)
    count, first, whose = _ERROR.unpack_from(message.data, HEADER_NBYTES)
    try:
        text = bytes(message[HEADER_NBYTES + _ERROR.size : HEADER_NBYTES + nbytes]).decode()
    except UnicodeDecodeError as error:
        raise _foreign(rank) from error
    if status == _Status.NON_FINITE:
        return Verdict(0, True, GradientError(count, first, text, whose))
    return Verdict(0, True, ExchangeError(text, None if whose < 0 else whose))


def _foreign(rank: int) -> ExchangeError:
    return ExchangeError(f"the message of rank {rank} is not one of gradwire's", rank)


def read_verdicts(
    messages: Bytes, digest: int, sequence: int, *, raises: bool = True
) -> list[Verdict]:
    """Read the messages of all ranks, one row per rank; raise as `raise_first` by default."""
    success = _BEGIN.pack(_MAGIC, _VERSION, _Status.OK, digest, sequence)
    begins = messages[:, : _BEGIN.size]
    if messages.shape[1] >= HEADER_NBYTES and (begins == np.frombuffer(success, np.uint8)).all():
        verdicts = []
        for row in messages:
            *_, nbytes, number, scale, total = _HEADER.unpack_from(row.data)
            verdicts.append(Verdict(nbytes, checksum=Checksum(number, scale, total)))
        return verdicts
    verdicts = [read_verdict(row, rank, digest, sequence) for rank, row in enumerate(messages)]
    if raises:
        raise_first(verdicts)
    return verdicts


def raise_first(verdicts: Sequence[Verdict]) -> None:
    """Raise the error of the first rank that has one; other failures precede non-finite values."""
    for kind in (ExchangeError, GradientError):
        for verdict in verdicts:
            if isinstance(verdict.error, kind):
                raise verdict.error


def share_failure(
    channel: Channel,
    contents: BucketContents,
    sequence: int,
    error: BaseException | None,
    act: str = "encode",
) -> NoReturn:
    """Gather the errors of all ranks once one has failed, and raise the first. A collective.

    No other thread uses the channel. ``act`` names the operation that failed.
    """
    message = np.zeros(MESSAGE_NBYTES, np.uint8)
    write_verdict(message, contents.digest, sequence, attributed(error, channel.rank, act))
    mine = torch.from_numpy(message)
    messages = mine.new_empty(channel.size * MESSAGE_NBYTES)
    with explained("a rank failed without reporting why"):
        channel.all_gather(messages, mine).wait()
    read_verdicts(messages.view(channel.size, -1).numpy(), contents.digest, sequence)
    raise ExchangeError("a rank failed, but none reported a reason")


def wait(work: Work, sequence: int) -> None:
    """Wait for a collective of a bucket."""
    try:
        work.wait()
    except RuntimeError as error:
        raise _explained(
            error,
            f"bucket {sequence} was not exchanged: another rank has stopped, failed, or did not "
            "run the same backward pass in time",
        ) from error


@contextlib.contextmanager
def explained(text: str) -> Iterator[None]:
    """Return an ExchangeError that names the rank and explains a failed collective."""
    try:
        yield
    except RuntimeError as error:
        raise _explained(error, text) from error


def _explained(error: RuntimeError, text: str) -> ExchangeError:
    rank = getattr(error, "rank", None)
    return kind_of(error)(f"{text} ({str(error).strip()})", rank)


# Flags that are summed with values ------------------------------------------------------------

_BITS = 16
_USED = 1 + 2 * _BITS


def check_word(*facts: object) -> int:
    """Return 16 bits that are the same on ranks that agree on all facts."""
    digest = zlib.crc32(repr(facts).encode())
    return (digest ^ digest >> 16) & 0xFFFF


class Flags(list[int]):
    """Numbers, 0 or 1 on each rank, that are summed before the values of a bucket.

    The sums tell every rank whether any rank failed, whether all are at the same bucket, and which
    parameters no rank used. Ranks with different words of `check_word` are out of step: each bit is
    sent with its complement, so that both sums are positive on every rank if ranks differ. The sum
    of plain numbers could match on one rank and not on another.
    """

    def __init__(self, contents: BucketContents, word: int) -> None:
        bits = [word >> bit & 1 for bit in range(_BITS)]
        super().__init__([0, *bits, *(1 - bit for bit in bits), *([0] * len(contents.pieces))])

    def use(self, index: int) -> None:
        """Record that the gradient of a compressed parameter is not zero on this rank."""
        self[_USED + index] = 1

    def fail(self) -> None:
        """Record that this rank failed. Its word no longer counts."""
        self[:] = [1] + [0] * (len(self) - 1)

    def bytes_of(self, dtype: torch.dtype) -> Bytes:
        """Return their bytes in a vector of this dtype."""
        front: Bytes = torch.tensor(self, dtype=dtype, device="cpu").view(torch.uint8).numpy()
        return front


def read_flags(front: Bytes, dtype: torch.dtype, sequence: int) -> list[bool] | None:
    """Read the sums over all ranks: whether any rank used each parameter; None if a rank failed.

    Raises an ExchangeError if the ranks are at different buckets.
    """
    failed, *sums = (torch.from_numpy(front).view(dtype) > 0).tolist()
    if failed:
        return None
    # Where one rank has a 1 in its word and another a 0, both the bit and its complement add up to
    # more than 0; where all have a 1, the complement's sum is 0.
    if any(one and zero for one, zero in zip(sums[:_BITS], sums[_BITS : _USED - 1], strict=True)):
        raise ExchangeError(
            f"another rank and this one summed different parameters at bucket {sequence}: the "
            "ranks did not run the same backward passes"
        )
    return sums[_USED - 1 :]
