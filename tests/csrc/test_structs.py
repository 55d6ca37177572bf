"""What Python passes to kernels is what these read: structs, numbers of parts, and options."""

import ctypes
import subprocess
import typing
from collections.abc import Callable, Iterable

import numpy as np
import pytest

import gradwire
from gradwire import memory, sparsify
from gradwire.memory import NoMemory
from gradwire.torch.backends.cuda import operators, structs
from tests.csrc.emulated.build import CSRC, EMULATED, FLAGS, compiler
from tests.csrc.parts import MEMORIES, QUANTIZERS, SPARSIFIERS

STRUCTS = [each for each in structs._TYPES.values() if isinstance(each, type(ctypes.Structure))]
ENUMS: dict[str, tuple[str, ...] | dict[str, int]] = {
    "Sparsifier": structs.SPARSIFIERS,
    "MemoryKind": tuple(name.removesuffix("_correction") for name in structs.MEMORIES),
    "IndexCoding": ("automatic", "elias_fano", "rice", "bitmap"),
    "PatternKind": ("any", "chunks", "subset", "run"),
    "Quantizer": structs.QUANTIZERS,
    "Magnitude": ("mean", "root_mean_square", "told"),
    "Norm": ("l2", "largest"),
    "Status": structs.STATUS,
}


def claims() -> Iterable[str]:
    for struct in STRUCTS:
        name = struct.__name__
        yield f"sizeof({name}) == {ctypes.sizeof(struct)}"
        for field, *_ in typing.cast("typing.Any", struct)._fields_:
            place = getattr(struct, field)
            yield f"offsetof({name}, {field}) == {place.offset}"
            yield f"sizeof({name}::{field}) == {place.size}"
    for name, values in ENUMS.items():
        numbers = values if isinstance(values, dict) else dict(zip(values, range(99), strict=False))
        for value, number in numbers.items():
            yield f"static_cast<unsigned>({name}::{value}) == {number}"
    header = gradwire.dense().encode(np.zeros(1, np.float32)).header()
    yield f"header_len == {header['header_nbytes']}"


def test_structs_and_enums_are_those_of_the_sources(tmp_path):
    lines = ["#include <cstddef>", '#include "frame/header.cuh"', "using namespace gradwire;"]
    lines += [f'static_assert({claim}, "{claim}");' for claim in claims()]
    assert len(lines) > 200
    source = tmp_path / "structs.cpp"
    source.write_text("\n".join(lines))
    command = [compiler(), *FLAGS, "-fsyntax-only", f"-I{EMULATED}", f"-I{CSRC}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_numbers_of_parts_are_those_of_frames():
    x = np.ones(500, np.float32)
    codecs = [gradwire.Codec(sparsify=part, memory=NoMemory()) for part in SPARSIFIERS]
    for part in QUANTIZERS:
        kept = memory.Residual() if part.contracts else NoMemory()
        codecs.append(gradwire.Codec(sparsify=sparsify.All(), quantize=part, memory=kept))
    for codec in codecs:
        frame = bytes(codec.encode(x, codec.init_state(x.size)))
        expected = (
            structs.sparsify_of(codec.sparsify).kind,
            structs.quantize_of(codec.quantize).kind,
        )
        assert (frame[6], frame[7]) == expected, codec


def test_every_kind_of_the_kernels_has_examples():
    assert {part.kind for part in SPARSIFIERS} == {*structs.SPARSIFIERS} - {"custom"}
    assert {part.kind for part in MEMORIES} == {*structs.MEMORIES}
    assert {structs.coding_of(part) for part in QUANTIZERS} == {*structs.QUANTIZERS}


@pytest.mark.parametrize(
    ("parts", "struct_of"),
    [
        (SPARSIFIERS, structs.sparsify_of),
        (QUANTIZERS, structs.quantize_of),
        (MEMORIES, structs.memory_of),
    ],
)
def test_every_option_is_passed_on(
    parts: list[typing.Any], struct_of: Callable[[typing.Any], ctypes.Structure]
) -> None:
    """A field that is set but is none of the struct would be an attribute of the object."""
    passed = {}
    for part in parts:
        struct = struct_of(part)
        assert not vars(struct), part
        passed[bytes(struct)] = part
    assert list(passed.values()) == parts


def test_a_part_without_kernels_goes_by_the_host(monkeypatch):
    codec = gradwire.topk(0.1)
    assert operators.takes(codec)
    for kind, names in (
        ("sparsify", "SPARSIFIERS"),
        ("quantize", "QUANTIZERS"),
        ("memory", "MEMORIES"),
    ):
        with monkeypatch.context() as patch:
            kinds = getattr(structs, names)
            others = {*kinds} - {getattr(codec, kind).kind}
            patch.setattr(structs, names, others)
            assert len(others) < len(kinds)
            assert not operators.takes(codec)
