"""Fronts of slots are those that the host writes, and frames are found where slots say they are."""

import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest

from gradwire.torch.backends.cuda import structs
from gradwire.torch.engine.metrics import Outcomes
from gradwire.torch.errors import ExchangeError, GradientError
from gradwire.torch.exchange import wire
from tests.csrc.bucket.bucket import DTYPES

DIGEST, SEQUENCE, RANK = 0xFEDCBA98, 12, 3
REFUSAL = "rank 3 could not encode: kernels refuse the gradient of "
CHECKSUM = wire.Checksum(7, 1024.0, 2**63 + 5)
RECORDS = 64
NONE = 2**64 - 1


def row(status="ok", nbytes=0, count=0, trimmed=0, zero=0, bad=(0, 0)):
    status = structs.STATUS.index(status)
    return [status, nbytes, count, -1, trimmed, zero, 0, 0, *bad]


@dataclass
class Case:
    """Rows of the table, lengths and widths of dense parameters, and what is not finite of them."""

    rows: list[list[int]]
    dense: list[tuple[int, int]] = field(default_factory=list)
    spoiled: list[int] = field(default_factory=list)  # numbers, of all dense entries
    dtype: str = "float32"
    error: Exception | None = None

    @property
    def names(self):
        return [f"wéight.{i}" for i in range(len(self.rows) + len(self.dense))]


def rows(count):
    return [row("ok", 60 + i, 5 + i % 7, 3 * (i % 3), i % 2) for i in range(count)]


def skipped(number):
    return [row("skipped")] * number


CASES = {
    "nothing": Case([]),
    "one": Case(rows(1)),
    "an empty frame that was trimmed": Case([row("ok", 48, 0, 9)]),
    "many, more than a block": Case(rows(300), [(70, 1), (9000, 2), (1, 1)]),
    "dense alone": Case([], [(5, 1)]),
    "not finite": Case(
        [*rows(2), row("non_finite", bad=(3, 41)), *skipped(2)],
        error=GradientError(3, 41, "wéight.2", RANK),
    ),
    "not finite, far behind": Case(
        [*rows(290), row("non_finite", bad=(2**40, 2**33)), *skipped(9)],
        error=GradientError(2**40, 2**33, "wéight.290", RANK),
    ),
    "refused": Case(
        [*rows(1), row("limit"), *skipped(1)],
        error=ExchangeError(REFUSAL + "wéight.1", RANK),
    ),
    "dense not finite": Case(
        rows(3), [(10, 1), (6000, 1)], [13, 14, 5020], error=GradientError(3, 3, "wéight.4", RANK)
    ),
    "entries of two numbers": Case(
        [], [(4, 1), (40, 2)], [9, 10, 11, 20, 43], error=GradientError(4, 2, "wéight.1", RANK)
    ),
    "the first of several": Case(
        [row("non_finite", bad=(1, 0))], [(4, 1)], [2], error=GradientError(1, 0, "wéight.0", RANK)
    ),
    "the first dense one": Case(
        [], [(4, 1), (4, 1)], [7, 2, 4], error=GradientError(1, 2, "wéight.0", RANK)
    ),
}


def expected(case, dense_at, nbytes, tells_zero):
    """Return what the host writes."""
    front = np.zeros(nbytes, np.uint8)
    if case.error is not None:
        wire.write_verdict(front[: wire.MESSAGE_NBYTES], DIGEST, SEQUENCE, case.error)
        return front
    table = np.array(case.rows, np.int64).reshape(-1, 10)[:, [1, 2, 3, 4, 5, 0]]
    outcomes = Outcomes.of(table)
    zero = outcomes.zero * tells_zero
    wire.write_verdict(front, DIGEST, SEQUENCE, checksum=CHECKSUM)
    records = np.stack([outcomes.nbytes, outcomes.wanted(), zero], 1).astype(np.uint64)
    front[RECORDS : RECORDS + records.nbytes] = records.reshape(-1).view(np.uint8)
    return front[:dense_at]


def values_of(case, dtype):
    numel = sum(n for n, _ in case.dense)
    spoiled = np.random.default_rng(numel).standard_normal(numel).astype(np.float32)
    for at, bad in zip(case.spoiled, itertools.cycle((np.nan, np.inf, -np.inf)), strict=False):
        spoiled[at] = bad
    if dtype == "bfloat16":
        return (spoiled.view(np.uint32) >> 16).astype(np.uint16)
    return spoiled.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_front_is_that_of_the_host(kernels, case, dtype):
    count, dense = len(case.rows), len(case.dense)
    dense_at = RECORDS + 24 * count + 8
    nbytes = max(dense_at, wire.MESSAGE_NBYTES)
    texts = [text.encode() for text in (*case.names, REFUSAL)]
    texts_at = np.array([*itertools.accumulate(map(len, texts), initial=0)], np.uint64)
    numels, widths = ([each[i] for each in case.dense] for i in range(2))
    ends = np.array([*itertools.accumulate(numels, initial=0)], np.uint64)
    values = values_of(case, dtype)
    header = np.array(wire.header_words(DIGEST, SEQUENCE, CHECKSUM._replace(total=0)), np.int64)
    total = np.array([CHECKSUM.total], np.uint64)
    for _, tells_zero in itertools.product(kernels.orders(), (False, True)):
        slot = np.full(nbytes + 16, 0xA5, np.uint8)
        kernels.call(
            "gradwire_test_write_front",
            *(
                slot,
                np.array([RECORDS, dense_at, nbytes], np.uint64),
                header.view(np.uint64),
                total,
            ),
            *(np.array(case.rows, np.int64).reshape(-1), count, dense, tells_zero, RANK),
            *(
                texts_at,
                ends,
                np.array(widths, np.uint64),
                np.frombuffer(b"".join(texts), np.uint8),
            ),
            np.full(2 * dense, 0xA5A5A5A5A5A5A5A5, np.uint64),
            *(values, DTYPES.index(dtype), values.size),
        )
        wanted = expected(case, dense_at, nbytes, tells_zero)
        assert slot[: wanted.size].tobytes() == wanted.tobytes()
        assert (slot[wanted.size :] == 0xA5).all(), "nothing else is written"


def test_a_checksum_of_the_host_stays_in_the_header(kernels):
    header = np.array(wire.header_words(DIGEST, SEQUENCE, CHECKSUM), np.int64).view(np.uint64)
    slot, none, end = np.zeros(1024, np.uint8), np.empty(0, np.uint64), np.zeros(2, np.uint64)
    kernels.call(
        "gradwire_test_write_front",
        *(slot, np.array([64, 64, 1024], np.uint64), header, None, none, 0, 0, False, RANK),
        *(end, end, none, none, none, none, 0, 0),
    )
    assert wire.read_verdict(slot, 0, DIGEST, SEQUENCE).checksum == CHECKSUM


class TestLocating:
    tensors, ranks, frames_at, stride = 400, 3, 12288, 32768

    def slots(self):
        """Return slots, with the limits of their frames, and their records."""
        generator = np.random.default_rng(5)
        limits = generator.integers(1, 50, self.tensors).astype(np.uint64)
        slots = np.full((self.ranks, self.stride), 0x5A, np.uint8)
        end = RECORDS + 24 * self.tensors
        for slot in slots:
            wire.write_verdict(slot[:RECORDS], DIGEST, SEQUENCE)
        records = slots[:, RECORDS:end].view(np.uint64).reshape(self.ranks, self.tensors, 3)
        records[..., 0] = generator.integers(0, limits + 1, (self.ranks, self.tensors))
        records[..., 1] = 2**60
        records[..., 2] = generator.integers(0, 2, (self.ranks, self.tensors))
        return slots, limits, records

    def found(self, kernels, slots, limits):
        """Return where frames begin in the slot of their rank, and their lengths."""
        header = np.array(wire.header_words(DIGEST, SEQUENCE)[:3], np.int64).view(np.uint64)
        places = np.array([RECORDS, self.frames_at, self.stride], np.uint64)
        frames = np.zeros((self.tensors, self.ranks, 2), np.uint64)
        frames[..., 1] = limits[:, None]
        kernels.call(
            "gradwire_test_locate_frames",
            *(slots, places, header, frames, self.tensors, self.ranks),
        )
        at, lens = frames[..., 0].astype(np.int64), frames[..., 1]
        return at - slots.ctypes.data - self.stride * np.arange(self.ranks), lens

    def test_frames_are_where_the_records_before_them_end(self, kernels):
        slots, limits, records = self.slots()
        sizes = records[..., 0].T
        starts = self.frames_at + np.cumsum(sizes, axis=0) - sizes
        zero = (records[..., 2] != 0).all(axis=0)[:, None]
        assert 10 < zero.sum() < 200
        for _ in kernels.orders():
            at, lens = self.found(kernels, slots, limits)
            assert (at == starts).all()
            assert (lens == np.where(zero, NONE, sizes)).all()

    def test_a_slot_that_is_not_well_has_no_frames(self, kernels):
        for byte in (0, 3, 4, 8, 11, 16, 23):
            slots, limits, records = self.slots()
            records[..., 2] = 1  # a rank that failed does not make anything unused
            slots[1, byte] ^= 1
            _, lens = self.found(kernels, slots, limits)
            assert (lens[:, 1] == 0).all()
            assert (lens[:, [0, 2]] == NONE).all()

    @pytest.mark.parametrize("size", [1, 2**31, 2**63, NONE])
    def test_a_frame_beyond_its_limit_is_not_read(self, kernels, size):
        slots, limits, records = self.slots()
        records[2, 7, 0] = int(limits[7]) + size if size == 1 else size
        at, lens = self.found(kernels, slots, limits)
        assert lens[7, 2] == 0
        kept = np.delete(records[2, :, 0], 7)
        assert (np.delete(lens[:, 2], 7)[np.delete(lens[:, 2], 7) != NONE] <= limits.max()).all()
        assert at[-1, 2] + int(records[2, -1, 0]) <= self.frames_at + int(kept.sum())
