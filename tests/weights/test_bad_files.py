"""Files of packed weights that are wrong: each an error that says where, never other values."""

import json
import os
import random

import numpy as np
import pytest

import gradwire
from gradwire import _native, cli, weights
from gradwire.errors import CorruptFileError, CorruptFrameError
from gradwire.memory import NoMemory
from gradwire.quantize import Affine
from tests.weights.containers import put_together, taken_apart


@pytest.fixture(scope="module")
def values():
    return np.random.default_rng(4).normal(size=(2, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def packed(values):
    return weights.pack(values, Affine(4, 16, fit="range"), more=(3,))


@pytest.fixture(scope="module")
def small(packed, values, tmp_path_factory):
    """The bytes of a file: a packed tensor with further bits, and one that is not packed."""
    path = tmp_path_factory.mktemp("small") / "small.safetensors"
    weights.save(path, {"w": packed, "b": values[0, :3]}, {"about": "x"})
    return path.read_bytes()


def content(path) -> dict[str, np.ndarray]:
    """All values of a file."""
    with weights.open(path) as file:
        tensors = file.items()
        return {n: t.unpack() if isinstance(t, weights.Packed) else np.array(t) for n, t in tensors}


def assert_found_out(path, data, values, packed):
    """Reading gives an error, or else what was packed as it was: only the rest has no checksum."""
    path.write_bytes(data)
    try:
        found = content(path)
    except (CorruptFileError, CorruptFrameError):
        return
    except ValueError as error:  # a length of 128 and more begins as a pickle does
        if "it is not a safetensors file, but" not in str(error):
            raise
        return
    # A name, or the key of the metadata itself, may be another one: then the bytes are not packed.
    if found.get("w", values).dtype == np.float32 and "w" in found:
        assert found["w"].size == values.size
        every, first = packed.unpack().reshape(-1), packed.unpack(bits=4).reshape(-1)
        assert any((found["w"].reshape(-1) == known).all() for known in (every, first))


def rewritten(data: bytes, change) -> bytes:
    """The file as changed by a function of its header and its table of packed tensors.

    A text that this returns takes the place of the table.
    """
    header, body = taken_apart(data)
    about = header["__metadata__"]
    table = json.loads(about["gradwire"])
    text = change(header, table)
    about["gradwire"] = json.dumps(table) if text is None else text
    return put_together(header, body)


def test_every_prefix_is_refused(small, tmp_path):
    path = tmp_path / "cut"
    for length in range(len(small)):
        path.write_bytes(small[:length])
        with pytest.raises(CorruptFileError):
            weights.open(path)
    path.write_bytes(small + b"\0")
    with pytest.raises(CorruptFileError, match="tensors end at"):
        weights.open(path)


def test_every_flipped_bit_is_found_but_in_tensors_that_have_no_checksum(
    small, values, packed, tmp_path
):
    path = tmp_path / "flipped"
    for bit in range(8 * len(small)):
        data = bytearray(small)
        data[bit // 8] ^= 1 << bit % 8
        assert_found_out(path, data, values, packed)


def test_thousands_of_random_changes_are_found(small, values, packed, tmp_path):
    """Seeded; bytes set, removed, doubled and swapped, in the header more often than elsewhere."""
    path, draw = tmp_path / "changed", random.Random(29)
    pieces = [*b'" } ] [ -1 0 1e400 null \\u0000 w {}'.split(), b"9" * 30]
    for _ in range(3000):
        data = bytearray(small)
        for _ in range(draw.choice((1, 1, 2, 4))):
            end = draw.choice((8, len(data) // 2, len(data)))
            at, length = draw.randrange(end), draw.randrange(1, 9)
            match draw.randrange(5):
                case 0:
                    data[at : at + length] = draw.randbytes(length)
                case 1:
                    del data[at : at + length]
                case 2:
                    data[at:at] = data[at : at + length]
                case 3:
                    data[at : at + length] = draw.choice(pieces)
                case 4:
                    other = draw.randrange(end)
                    data[at], data[other] = data[other], data[at]
            if draw.random() < 0.5:  # or the length of the header alone is found
                start = data.find(b"GWF\1")
                data[:8] = max(start - 8, 0).to_bytes(8, "little")
        assert_found_out(path, data, values, packed)


def tensor(key, value):
    """A change of what the metadata says of ``w``."""
    return lambda header, table: table["tensors"]["w"].update({key: value})


def section(key, value, name="w"):
    """A change of what the header says of a tensor."""
    return lambda header, table: header[name].update({key: value})


def without(key, name="w"):
    return lambda header, table: header[name].pop(key) and None


AT_ONCE = {
    "metadata-not-json": (lambda h, t: "{]", "metadata 'gradwire' is not JSON"),
    "version-2": (lambda h, t: t.update(version=2), "version 2, but this library reads 1: up"),
    "version-true": (lambda h, t: t.update(version=True), "have version True"),
    "no-tensors": (lambda h, t: t.pop("tensors") and None, "lists no tensors"),
    "not-there": (
        lambda h, t: t["tensors"].update(v=t["tensors"]["w"]),
        "tensor 'v': there are no bytes named 'v'",
    ),
    "no-further": (lambda h, t: h.pop("w.more.0") and h["b"].update(data_offsets=[0, 12]), "'w"),
    "no-fields": (lambda h, t: t["tensors"].update(w=None), "'w': the metadata does not describe"),
    "negative": (tensor("shape", [2, -16]), "'w': its shape is"),
    "true": (tensor("shape", [True, 32]), "'w': its shape is"),
    "2-to-the-80": (tensor("shape", [2**40, 2**40]), "'w': its shape .* not 1 to 4294967295"),
    "no-entries": (tensor("shape", [0]), "'w': its shape .* not 1 to 4294967295"),
    "no-coding": (tensor("coding", None), "'w': its coding is None"),
    "error-true": (tensor("error", True), "'w': its error is True"),
    "error-infinite": (
        lambda h, t: json.dumps(t).replace("0.0", "1e999 ", 1),
        "its error|not JSON",
    ),
    "error-not-a-number": (tensor("error", float("nan")), "NaN is no number of JSON"),
    "base-none": (lambda h, t: t.update(base=None), "the name of its base is None"),
    "header-none": (lambda h, t: t.update(header=None), "the original header is None"),
    "further-listed": (
        lambda h, t: t["tensors"].update({"w.more.0": t["tensors"]["w"] | {"coding": "lossless"}}),
        "it is listed beside 'w'",
    ),
    "many-dimensions": (tensor("shape", [1] * 65), "'w': its shape is"),
    "int32": (tensor("dtype", "int32"), "'w': its dtype is 'int32'"),
    "further-0": (tensor("further", [0]), "'w': its further bits are"),
    "further-8": (tensor("further", [8]), "'w': its further bits are"),
    "further-twice": (tensor("further", [2, 1]), "'w': its further bits are"),
    "error-negative": (tensor("error", -1.0), "'w': its error is"),
    "unknown-dtype": (section("dtype", "Q4"), "'w': there are no bytes named 'w'"),
    "dtype-a-number": (section("dtype", 4), "'w': its dtype is 4"),
    "half-a-byte": (
        lambda h, t: h["b"].update(dtype="F4", shape=[23]),
        "'b': 23 entries of F4 are not at",
    ),
    "unknown-backwards": (
        lambda h, t: h["b"].update(dtype="Q4", data_offsets=[12, 0]),
        "'b': data_offsets are",
    ),
    "larger": (section("shape", [81]), "'w': 81 entries of U8 are not at"),
    "one-offset": (section("data_offsets", [0]), "'w': data_offsets are"),
    "backwards": (section("data_offsets", [96, 16]), "'w': data_offsets are"),
    "overlap": (section("data_offsets", [0, 12], "b"), "it begins at 0 instead of"),
    "gap": (section("data_offsets", [1000, 1012], "b"), "'b': it begins at 1000 instead of"),
    "no-dtype": (without("dtype"), "'w': the header does not give dtype"),
    "about-a-number": (lambda h, t: h["__metadata__"].update(about=1), "not a string"),
}


@pytest.mark.parametrize("case", AT_ONCE)
def test_a_header_that_does_not_fit_is_refused_when_the_file_is_opened(case, small, tmp_path):
    change, message = AT_ONCE[case]
    path = tmp_path / "forged"
    path.write_bytes(rewritten(small, change))
    with pytest.raises(CorruptFileError, match=message):
        weights.open(path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b'{"b": {}, "b": {}}', "a name occurs twice"),
        (b'{"a":' * 100_000, "the header is not JSON"),
    ],
    ids=["twice", "deep"],
)
def test_a_header_that_no_json_library_writes_is_refused(header, message, tmp_path):
    path = tmp_path / "odd"
    path.write_bytes(put_together(header))
    with pytest.raises(CorruptFileError, match=message):
        weights.open(path)


@pytest.mark.parametrize(
    "length", [0, 1, 2**63, 2**64 - 1, 100 << 20], ids=["0", "1", "2^63", "2^64-1", "100-MiB"]
)
def test_a_header_of_another_length_than_the_file_allows_is_refused(length, small, tmp_path):
    path = tmp_path / "long"
    path.write_bytes(length.to_bytes(8, "little") + small[8:])
    with pytest.raises(CorruptFileError, match=f"a header of {length} bytes does not fit"):
        weights.open(path)


WHEN_USED = {
    "another-product": (tensor("shape", [2, 15]), "32 entries do not fit shape"),
    "fewer-further-bits": (tensor("further", [2]), "16 bytes of 2 further bits"),
    "more-further-bits": (tensor("further", [5]), "further bits"),
}


@pytest.mark.parametrize("case", WHEN_USED)
def test_a_tensor_that_does_not_fit_is_refused_when_it_is_used(case, small, values, tmp_path):
    change, message = WHEN_USED[case]
    path = tmp_path / "forged"
    path.write_bytes(rewritten(small, change))
    with weights.open(path) as file:
        np.testing.assert_array_equal(file["b"], values[0, :3])
        with pytest.raises(CorruptFileError, match=f"tensor 'w': .*{message}") as caught:
            file["w"]
        assert caught.value.name == "w"


@pytest.mark.parametrize("times", [0, 2])
def test_a_tensor_of_two_frames_or_none_is_refused(times, packed, tmp_path):
    path = tmp_path / "frames"
    weights.save(path, {"w": packed.keep(4)})
    frame = bytes(packed.frame)

    def change(header, table):
        size = len(frame) * times
        header["w"] = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}

    path.write_bytes(rewritten(path.read_bytes(), change).replace(frame, frame * times))
    with weights.open(path) as file, pytest.raises(CorruptFileError, match="tensor 'w'"):
        file["w"]


def test_keys_that_nobody_knows_are_left_alone(small, packed, tmp_path):
    path = tmp_path / "other"

    def change(header, table):
        table["__metadata__"] = 5
        table["tensors"]["w"]["later"] = None

    path.write_bytes(rewritten(small, change))
    np.testing.assert_array_equal(content(path)["w"], packed.unpack())


def test_a_tensor_named_like_further_bits_that_are_not_announced_is_one(packed, values, tmp_path):
    path = tmp_path / "both"
    both = {"w": packed.keep(4), "w.more.0": values, "v": packed, "v.more.1": values}
    weights.save(path, both)
    with weights.open(path) as file:
        assert list(file) == list(both)
        np.testing.assert_array_equal(file["w.more.0"], values)


def refused_everywhere(frame, shape, path):
    """A frame is refused wherever it comes from: by name where it has one."""
    with pytest.raises(CorruptFrameError):
        weights.Packed(frame, shape)
    sound = weights.pack(np.ones(shape, np.float32), Affine(4, 16))
    weights.save(path, {"w": sound})
    data = path.read_bytes()

    def change(header, table):
        header["w"].update(shape=[len(frame)], data_offsets=[0, len(frame)])

    path.write_bytes(rewritten(data.replace(bytes(sound.frame), frame), change))
    for mapped in (True, False):
        with (
            weights.open(path, mapped=mapped) as file,
            pytest.raises(CorruptFileError, match="tensor 'w'"),
        ):
            file["w"]
    for command in (["inspect", str(path)], ["unpack", str(path), str(path) + ".out"]):
        assert cli.main(command) == 1


def test_a_frame_that_is_not_dense_is_no_packed_tensor(tmp_path):
    codec = gradwire.topk(k=4, quantize=Affine(4, 16, fit="zero"), memory=NoMemory())
    frame = bytes(codec.encode(np.arange(32, dtype=np.float32)))
    refused_everywhere(frame, (32,), tmp_path / "a.safetensors")


WORDS = {"nan": 0x7E00, "inf": 0x7C00, "-1": 0xBC00, "-0": 0x8000, "-inf": 0xFC00}


@pytest.mark.parametrize(
    ("at", "word"),
    [*((at, word) for at in (56, 60) for word in WORDS), (58, "nan"), (58, "inf"), (62, "-inf")],
)
def test_a_grid_that_is_none_is_refused_behind_a_right_checksum(at, word, values, tmp_path):
    """Bytes 56 and 60 hold the steps of the first two blocks, 58 and 62 their bases."""
    frame = bytearray(weights.pack(values, Affine(4, 16)).frame)
    frame[at : at + 2] = WORDS[word].to_bytes(2, "little")
    frame[12:16] = _native.crc32c(bytes(frame[:12] + frame[16:]), 0).to_bytes(4, "little")
    with pytest.raises(CorruptFrameError, match="not finite"):
        gradwire.decode(frame)
    refused_everywhere(bytes(frame), values.shape, tmp_path / "a.safetensors")


def test_a_grid_of_all_bits_that_is_infinite_is_refused(values):
    """A base of -65,504 and a step of 65,504: with further bits the base would be -98,256."""
    packed = weights.pack(values, Affine(4, 16, fit="range"), more=(4,))
    frame = bytearray(packed.frame)
    frame[56:60] = bytes.fromhex("ff7bfffb")
    frame[12:16] = _native.crc32c(bytes(frame[:12] + frame[16:]), 0).to_bytes(4, "little")
    forged = weights.Packed(bytes(frame), values.shape, "float32", packed.further, 4)
    assert np.isfinite(forged.unpack(bits=4)).all()
    with pytest.raises(CorruptFrameError, match="beyond what float16 holds"):
        forged.unpack()


def test_further_bits_are_checked_before_they_are_saved(packed, values, tmp_path):
    further = bytearray(packed.further)
    further[-1] ^= 1
    forged = weights.Packed(packed.frame, values.shape, "float32", bytes(further), 3)
    with pytest.raises(CorruptFrameError, match="checksum of the further codes"):
        weights.save(tmp_path / "a", {"w": forged})
    assert not [*tmp_path.iterdir()]


def test_a_file_that_was_cut_while_open_is_an_error_and_no_crash(small, tmp_path):
    path = tmp_path / "cut"
    path.write_bytes(small)
    with weights.open(path) as file:
        os.truncate(path, len(small) - 1)
        name = list(file)[-1]
        with pytest.raises(CorruptFileError, match=f"tensor '{name}': the file was cut"):
            file[name]
