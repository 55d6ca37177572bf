"""Fronts of slots are those that the host writes."""

import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from gradwire.torch.backends import SlotFacts
from gradwire.torch.backends.cpu import INPUTS
from gradwire.torch.backends.cuda import slots, structs
from gradwire.torch.backends.cuda.operators import operators
from gradwire.torch.engine.metrics import Outcomes
from gradwire.torch.errors import ExchangeError, GradientError
from gradwire.torch.exchange import wire

DIGEST, SEQUENCE, RANK = 0xFEDCBA98, 12, 3
REFUSAL = "rank 3 could not encode: kernels refuse the gradient of "
CHECKSUM = wire.Checksum(7, 1024.0, 2**63 + 5)
RECORDS = 64


def row(status="ok", nbytes=0, count=0, trimmed=0, zero=0, bad=(0, 0)):
    status = structs.STATUS.index(status)
    return [status, nbytes, count, -1, trimmed, zero, 0, 0, *bad]


@dataclass
class Case:
    """Rows of the table, lengths and widths of dense parameters, and what is not finite of them."""

    rows: list[list[int]]
    dense: list[tuple[int, int]] = field(default_factory=list)
    spoiled: list[int] = field(default_factory=list)  # numbers, of all dense entries
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
    spoiled = torch.randn(numel, generator=torch.Generator().manual_seed(numel))
    for at, bad in zip(case.spoiled, itertools.cycle((np.nan, np.inf, -np.inf)), strict=False):
        spoiled[at] = bad
    return spoiled.to(dtype)


def write(case, dtype, dense_at, nbytes, *, total, tells_zero=False):
    """Return the slot that the kernels write, with unused room behind it."""
    facts = SlotFacts(case.names, case.dense, REFUSAL, 10**6, RANK)
    slot = torch.full((nbytes + 16,), 0xA5, dtype=torch.uint8)
    header = CHECKSUM if total is None else CHECKSUM._replace(total=0)
    operators().write_slot(
        *(slot, torch.tensor(case.rows, dtype=torch.int64).view(-1), values_of(case, dtype)),
        *(slots._bytes_of(facts), torch.tensor([] if total is None else [total])),
        *(list(wire.header_words(DIGEST, SEQUENCE, header)), [RECORDS, dense_at, nbytes]),
        *(len(case.dense), RANK, tells_zero),
    )
    return slot.numpy()


@pytest.mark.parametrize("dtype", INPUTS, ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_front_is_that_of_the_host(kernels, case, dtype):
    dense_at = RECORDS + 24 * len(case.rows) + 8
    nbytes = max(dense_at, wire.MESSAGE_NBYTES)
    for _, tells_zero in itertools.product(kernels.orders(), (False, True)):
        total = np.uint64(CHECKSUM.total).astype(np.int64)
        slot = write(case, dtype, dense_at, nbytes, total=total, tells_zero=tells_zero)
        wanted = expected(case, dense_at, nbytes, tells_zero)
        assert slot[: wanted.size].tobytes() == wanted.tobytes()
        assert (slot[wanted.size :] == 0xA5).all(), "nothing else is written"


def test_a_checksum_of_the_host_stays_in_the_header():
    slot = write(Case([]), torch.float32, 64, 1024, total=None)
    assert wire.read_verdict(slot, 0, DIGEST, SEQUENCE).checksum == CHECKSUM
