"""The messages in which ranks tell each other how they fared with a bucket."""

import itertools
import tracemalloc
from typing import Any, cast

import numpy as np
import pytest
import torch

from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.parameter import ParameterSlot, SizeLimit
from gradwire.torch.errors import ExchangeError, GradientError
from gradwire.torch.exchange.wire import (
    HEADER_NBYTES,
    MESSAGE_NBYTES,
    Flags,
    Verdict,
    attributed,
    check_word,
    raise_first,
    read_flags,
    read_verdict,
    read_verdicts,
    write_verdict,
)

DIGEST, SEQUENCE = 0xFEDCBA98, 41
ERRORS: list[BaseException | None] = [
    None,
    GradientError(3, 2**40, "layer.0.weight", 5),
    GradientError(2**63, 2**64 - 1, "é" * 2000, 0),
    ExchangeError("rank 1 could not encode: MemoryError: no memory", 1),
    ExchangeError("", None),
    ExchangeError("é" * 2000, 2**31 - 1),
    KeyboardInterrupt("stopped"),
]


def message(size: int = MESSAGE_NBYTES, **options: Any) -> np.ndarray:
    out = np.zeros(size, np.uint8)
    write_verdict(out, DIGEST, SEQUENCE, **options)
    return out


def read(data: np.ndarray, rank: int = 3) -> Verdict:
    return read_verdict(data, rank, DIGEST, SEQUENCE)


def without_padding(data: np.ndarray) -> bytes:
    header = data[:HEADER_NBYTES].copy()
    header[5:8] = header[12:16] = 0
    return header.tobytes()


def facts(verdict: Verdict) -> tuple[Any, ...]:
    error = verdict.error
    return verdict.nbytes, verdict.failed, type(error), error and error.args


@pytest.mark.parametrize("nbytes", [0, 1, 2**64 - 1])
def test_a_good_verdict_announces_bytes_and_needs_no_more_than_a_header(nbytes: int) -> None:
    assert read(message(HEADER_NBYTES, nbytes=nbytes)) == Verdict(nbytes)


@pytest.mark.parametrize("error", ERRORS[1:], ids=lambda error: str(error)[:20])
def test_an_error_reads_as_it_was_written(error: BaseException) -> None:
    verdict = read(message(error=error))
    told = verdict.error
    assert verdict.failed
    if isinstance(error, GradientError):
        assert isinstance(told, GradientError)
        assert (told.count, told.first, told.rank) == (error.count, error.first, error.rank)
        assert str(error.name).startswith(str(told.name))
        assert len(str(told.name)) == min(len(str(error.name)), 472), "cut between characters"
    else:
        assert isinstance(told, ExchangeError)
        whole = str(error) if isinstance(error, ExchangeError) else "KeyboardInterrupt: stopped"
        assert whole.startswith(told.message)
        assert len(told.message) == min(len(whole), 472)
        assert told.rank == getattr(error, "rank", None)
    assert read(message(HEADER_NBYTES, error=error)) == Verdict(0, True), "without room for it"


def test_other_buckets_and_other_versions_are_refused() -> None:
    data = message()
    with pytest.raises(
        ExchangeError, match="rank 3 is at bucket 41, but this rank is at bucket 42, with"
    ) as e:
        read_verdict(data, 3, DIGEST, 42)
    assert e.value.rank == 3
    assert "the same parameters: the ranks did not run the same backward passes" in str(e.value)
    with pytest.raises(ExchangeError, match="different parameters"):
        read_verdict(data, 3, DIGEST + 1, SEQUENCE)
    data[3] = 1
    with pytest.raises(
        ExchangeError, match=r"rank 3 has another version of gradwire: .* version 1"
    ):
        read(data)
    for older in (b"GWS1", b"GWR1", b"GWN1"):
        data[:4] = np.frombuffer(older, np.uint8)
        with pytest.raises(ExchangeError, match="of rank 3 is not one of gradwire's"):
            read(data)


def test_the_first_failure_is_raised_and_precedes_gradients_that_are_not_finite() -> None:
    bad = GradientError(1, 2, "w", -1)
    errors = [None, bad, MemoryError("no memory"), ValueError("later"), bad]
    rows = np.stack([message(error=attributed(each, rank)) for rank, each in enumerate(errors)])
    verdicts = read_verdicts(rows, DIGEST, SEQUENCE, raises=False)
    with pytest.raises(ExchangeError, match=r"^rank 2 could not encode: MemoryError: no memory$"):
        raise_first(verdicts)
    with pytest.raises(GradientError) as e:
        raise_first(verdicts[:2] + verdicts[4:])
    assert (e.value.name, e.value.count, e.value.first, e.value.rank) == ("w", 1, 2, 1)
    raise_first(verdicts[:1])


@pytest.mark.parametrize("size", [HEADER_NBYTES, HEADER_NBYTES + 32, MESSAGE_NBYTES])
def test_hostile_bytes_are_refused_or_read_as_what_could_have_been_written(size: int) -> None:
    """Random, mutated and truncated messages: a typed error, or what writes the same bytes."""
    random = np.random.default_rng(size)
    good = [message(size, error=error, nbytes=7) for error in ERRORS]
    hostile = [random.integers(0, 256, size, np.uint8) for _ in range(200)]
    hostile += [
        each[:end] for each, end in itertools.product(good, range(0, size, 1 + size // 128))
    ]
    for each in good:
        for at in range(min(size, 96)):
            for value in (0, 1, 2, 3, 0x7F, 0x80, 0xFF, int(random.integers(256))):
                mutant = each.copy()
                mutant[at] = value
                hostile.append(mutant)
    refused, accepted = list[int | None](), 0
    tracemalloc.start()
    for data in hostile:
        try:
            verdict = read(data)
        except ExchangeError as error:
            refused.append(error.rank)
        else:
            accepted += 1
            again = message(
                data.size, error=verdict.error, nbytes=verdict.nbytes, checksum=verdict.checksum
            )
            if verdict.error is not None:
                assert facts(read(again)) == facts(verdict)
            elif not verdict.failed:
                assert again[:HEADER_NBYTES].tobytes() == without_padding(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    assert accepted >= len(ERRORS)
    assert set(refused) == {3}


def test_flags_tell_of_failures_of_ranks_out_of_step_and_of_unused_parameters() -> None:
    slots = [
        ParameterSlot(name, torch.zeros(9), state=cast(Any, object()), limit=SizeLimit(50))
        for name in "abc"
    ]
    contents = BucketContents(slots, torch.float32)

    def total(*flags: Flags) -> Any:
        vectors = [
            torch.from_numpy(each.bytes_of(torch.float32)).view(torch.float32) for each in flags
        ]
        assert all(each.numel() == len(flags[0]) for each in vectors)
        front = sum(vectors[1:], vectors[0]).view(torch.uint8).numpy()
        return read_flags(front, torch.float32, 7)

    words = [check_word("bucket", number) for number in range(2)]
    assert words[0] != words[1]
    one, two = Flags(contents, words[0]), Flags(contents, words[0])
    one.use(0)
    two.use(2)
    assert total(one, two) == [True, False, True]
    with pytest.raises(ExchangeError, match="at bucket 7: the ranks did not run the same backward"):
        total(one, Flags(contents, words[1]))
    two.fail()
    assert total(one, two) is None
