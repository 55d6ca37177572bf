"""The trial of a device at first use, over the emulated kernels, with faults that are planted."""

import ctypes
import threading
import warnings
from types import SimpleNamespace

import pytest
import torch

from gradwire.errors import ExtensionError
from gradwire.presets import OWN
from gradwire.torch.backends.cuda import encoding, operators, structs, trial
from tests.csrc.emulated.operators import RACES, emulate
from tests.csrc.parts import MEMORIES, PRESETS, SPARSIFIERS

CPU = torch.device("cpu")
WRONG = 3
"""The tensor of a bucket that a fault is planted in."""
OPERATORS = (
    *("complete_pieces", "encode_plan", "encode_room", "encode_forget", "encode_bucket"),
    *("rollback_bucket", "decode_bucket"),
    *("split_bucket", "frame_heads", "absorb_bucket"),
)


@pytest.fixture(scope="module", autouse=True)
def emulated():
    emulate()


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Emulated kernels take long on a busy machine, and with the race detector."""
    monkeypatch.setattr(trial, "PATIENCE", 600.0)


@pytest.fixture
def few(monkeypatch):
    """A few short tensors: the one of the faults, and some with memories in bfloat16 at the end."""
    every = [each._replace(numel=min(each.numel, 700)) for each in trial.cases()]
    narrow = [each for each in every if getattr(each.codec.memory, "low_memory", False)]
    found = [*every[:5], *narrow]
    monkeypatch.setattr(trial, "cases", lambda: found)
    return found


@pytest.fixture
def plant(monkeypatch):
    """Put another function in the place of an operator; it is given the real one."""

    def put(name, function):
        real = operators.operators()
        library = SimpleNamespace(**{each: getattr(real, each) for each in OPERATORS})
        setattr(library, name, lambda *given: function(getattr(real, name), *given))
        monkeypatch.setattr(torch.ops, "planted", library, raising=False)
        monkeypatch.setattr(operators, "_library", "planted")

    return put


def test_cases_are_all_presets_and_parts():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        every = trial.cases()
    titles = {each.title for each in every}
    assert titles >= {each.call.replace("gradwire.", "") for each in OWN if each.name in PRESETS}
    codecs = [each.codec for each in every]
    assert {type(each.sparsify) for each in codecs} == {*map(type, SPARSIFIERS)}
    assert {type(each.memory) for each in codecs} == {*map(type, MEMORIES)}
    assert {structs.coding_of(each.quantize) for each in codecs} == {*structs.QUANTIZERS}
    assert {each.indices for each in codecs} == {"auto", "elias-fano", "rice", "bitmap"}
    assert sum(each.numel == trial.LARGE for each in every) == len({*map(type, SPARSIFIERS)})
    assert {0, 1} < {each.numel for each in every}
    assert len(titles) == len(every)


@pytest.mark.skipif(bool(RACES), reason="takes minutes; other tests watch the kernels")
def test_kernels_that_are_right_pass_in_all_rows(monkeypatch):
    monkeypatch.setattr(encoding, "_seeded", set())
    found = trial.run(CPU, whole=True)
    assert found.failure is None
    steps = {(row.codec, row.dtype): row.steps for row in found.rows}
    for case in trial.cases():
        assert steps[case.title, "float32"] == 3
        assert steps[case.title, "bfloat16"] == 3
    assert len(repr(found).splitlines()) == 1 + len(found.rows)
    assert not encoding._seeded, "decodes of the program need no more memory than before"


def flipped(tensor, at):
    tensor.view(torch.uint8).view(-1)[at] ^= 1


def wrong_frame(real, *given):
    table = real(*given)
    if len(table) > WRONG:
        flipped(given[5], int(table[:WRONG, 1].sum()) + 9)
    return table


def wrong_count(real, *given):
    table = real(*given)
    if len(table) > WRONG:
        table[-1, 2] += 1
    return table


def wrong_memory(real, *given):
    table = real(*given)
    if len(table) > WRONG:
        for byte in range(1024, given[3][WRONG].numel(), 4):  # whichever buffer is the current one
            flipped(given[3][WRONG], byte)
    return table


def wrong_options(pieces):
    size = ctypes.sizeof(structs.Piece)
    if pieces.numel() > WRONG * size:
        at = WRONG * size + structs.Piece.indices.offset
        pieces[at] = structs.INDICES.index("bitmap")
    return pieces


def wrong_rollback(real, *given):
    real(*given)
    flipped(given[1][WRONG], 1024 + 4)
    flipped(given[1][WRONG], given[1][WRONG].numel() // 2 + 512 + 4)


def wrong_value(real, out, data, ends, *given):
    verdicts = real(out, data, ends, *given)
    if len(ends) > 2 * WRONG:
        flipped(out, out.element_size() * ends[2 * WRONG])
    return verdicts


def wrong_verdict(real, out, data, ends, *given):
    verdicts = real(out, data, ends, *given)
    return torch.zeros_like(verdicts) if len(ends) == 2 else verdicts


def wrong_part(real, *given):
    parts, table, verdicts = real(*given)
    flipped(parts, int(table[0, 1]) - 1)
    return parts, table, verdicts


def wrong_residual(real, *given):
    outcomes = real(*given)
    for byte in range(1024, given[1][0].numel(), 4):  # whichever buffer is the current one
        flipped(given[1][0], byte)
    return outcomes


@pytest.mark.parametrize(
    ("name", "fault", "which", "said"),
    [
        ("encode_bucket", wrong_frame, WRONG, "another frame for {}, step 1, float32"),
        ("encode_bucket", wrong_count, -1, "another frame for {}, step 1, float32"),
        ("encode_bucket", wrong_memory, WRONG, "another frame for {}, step 2, float32"),
        (
            "complete_pieces",
            lambda real, pieces: wrong_options(real(pieces)),
            WRONG,
            "another frame for {}, step 1, float32",
        ),
        (
            "encode_plan",
            lambda real, pieces, *given: real(wrong_options(pieces.clone()), *given),
            WRONG,
            "another frame for {}, step 1, float32",
        ),
        ("rollback_bucket", wrong_rollback, WRONG, "another state for {}, step 3, float32"),
        (
            "decode_bucket",
            wrong_value,
            WRONG,
            "another average in torch.float32 for {}, step 3, float32",
        ),
        (
            "decode_bucket",
            wrong_verdict,
            None,
            "another verdict on a damaged frame for",
        ),
        ("split_bucket", wrong_part, 2, "another cut frame for all codecs, step 3, float32"),
        ("absorb_bucket", wrong_residual, 2, "another state for {}, step 3, float32"),
        ("encode_room", lambda real, *given: real(*given) - 1, None, "scratch must have"),
    ],
)
def test_a_wrong_byte_of_an_operator_is_found_and_named(few, plant, name, fault, which, said):
    plant(name, fault)
    failure = trial.run(CPU).failure
    assert failure.startswith(said.format(None if which is None else few[which].title)) or (
        which is None and said in failure
    )


def test_a_trial_of_all_rows_says_the_first_difference(few, plant):
    plant("encode_bucket", wrong_frame)
    failure = trial.run(CPU, whole=True).failure
    assert failure == f"another frame for {few[WRONG].title}, step 1, float32"


def test_an_operator_that_raises_is_a_failure(few, plant):
    assert trial.run(CPU).failure is None

    def fault(real, *given):
        raise RuntimeError("gradwire: CUDA says: too many resources\nrequested for launch")

    plant("absorb_bucket", fault)
    assert trial.run(CPU).failure == (
        "RuntimeError: gradwire: CUDA says: too many resources for all codecs, step 3, float32"
    )


def test_a_kernel_that_hangs_is_an_error_that_says_so(few, plant, monkeypatch):
    ended = threading.Event()

    def fault(real, *given):
        ended.wait(60)
        return real(*given)

    plant("decode_bucket", fault)
    monkeypatch.setattr(trial, "PATIENCE", 0.5)
    with pytest.raises(ExtensionError, match=r"cpu hangs: .* cannot be cleared"):
        trial.run(CPU)
    ended.set()
    for thread in threading.enumerate():
        if thread.name == "gradwire-trial":
            thread.join(60)
