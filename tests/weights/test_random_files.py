"""What `save` writes, `open` reads: over random names, dtypes, layouts and bases."""

import os

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire import weights
from gradwire.quantize import Affine
from tests.weights import plain_coded_reader, plain_reader

DTYPES = [
    *("?", "u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8", "c8", ">f4", ">i2"),
    *(ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn),
]
SHAPES = [(), (0,), (1,), (3, 0, 2), (7,), (2, 3), (4, 1, 5), (1, 1, 1, 1), (600,), (65_537,)]
LAYOUTS = {
    "rows": lambda array: array,
    "columns": np.asfortranarray,
    "backwards": lambda array: array[..., ::-1] if array.ndim else array,
    "gaps": lambda array: np.repeat(array, 2, -1)[..., ::2] if array.ndim else array,
    "one entry": lambda array: (
        np.broadcast_to(array.reshape(-1)[:1].reshape(()), array.shape) if array.size else array
    ),
    "read-only": lambda array: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape),
}
NAMES = st.one_of(
    st.text(max_size=12),
    st.text(st.characters(), max_size=4),  # halves of surrogate pairs among them
    st.sampled_from(["w", "w.more.0", "w.more.0.more.0", "", "a/b", "__metadata__", "\0", "é\n"]),
)
FOLDERS = [".", "one", "two", "one/deep", "one/deep/deeper", "link"]


def values(random, dtype, shape):
    dtype = np.dtype(dtype)
    whole = random.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    if dtype.kind == "b":
        whole &= 1
    elif random.random() < 0.5:  # few values, which are coded
        whole[..., :-1] = 0
    return whole.view(dtype).reshape(shape)


@st.composite
def trees(draw):
    """Tensors by name."""
    found = {}
    for name in draw(st.lists(NAMES, max_size=5, unique=True)):
        random = np.random.default_rng(draw(st.integers(0, 2**32)))
        if draw(st.integers(0, 4)) == 0:
            rows = random.normal(size=draw(st.sampled_from([(3,), (2, 16), (33,)])))
            bits, more = draw(st.integers(1, 7)), draw(st.integers(0, 3))
            more = [more] if 0 < more <= 8 - bits else []
            dtype = draw(st.sampled_from(["f4", "f2", ml_dtypes.bfloat16]))
            affine = Affine(bits, 16, fit="range")
            found[name] = weights.pack(rows.astype(dtype), affine, more)
            continue
        array = values(random, draw(st.sampled_from(DTYPES)), draw(st.sampled_from(SHAPES)))
        found[name] = LAYOUTS[draw(st.sampled_from([*LAYOUTS]))](array)
    return found


def moved(draw, tensors):
    """A step later: some tensors as they were, some with a last entry changed, some new."""
    found = dict(tensors)
    for name, tensor in tensors.items():
        change = draw(st.sampled_from(["none", "last", "all", "gone"]))
        if change == "gone":
            del found[name]
        elif not isinstance(tensor, weights.Packed) and tensor.size and change != "none":
            random = np.random.default_rng(draw(st.integers(0, 2**32)))
            new = values(random, tensor.dtype, tensor.shape)
            if change == "last":
                last, new = new, tensor.copy()
                new.reshape(-1)[-1:] = last.reshape(-1)[-1:]
            found[name] = new
    return found | draw(trees())


def little(tensor):
    return np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<")).tobytes()


def assert_reads(path, tensors, metadata, mapped):
    with weights.open(path, mapped=mapped) as file:
        assert list(file) == list(tensors)
        assert file.metadata == metadata
        for name, tensor in tensors.items():
            found = file[name]
            assert tuple(found.shape) == tuple(tensor.shape)
            if isinstance(tensor, weights.Packed):
                assert bytes(found.joined()) == bytes(tensor.joined())
                assert found.dtype == tensor.dtype
            else:
                assert found.dtype == tensor.dtype.newbyteorder("<")
                assert found.tobytes() == little(tensor)
    plain, _ = plain_coded_reader.read(path)
    for name, tensor in tensors.items():
        if isinstance(tensor, weights.Packed):
            assert plain[name] == bytes(tensor.frame)
        else:
            assert plain[name] == little(tensor)
    packed = plain_reader.read(path.read_bytes())
    assert packed.keys() == {n for n, t in tensors.items() if isinstance(t, weights.Packed)}


def is_writable(tensors, metadata):
    """Whether a file can hold these: what `save` says in its documentation."""
    further = {
        f"{name}.more.0"
        for name, tensor in tensors.items()
        if isinstance(tensor, weights.Packed) and tensor.more
    }
    texts = [*tensors, *further, *metadata, *metadata.values()]
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    taken = {"__metadata__"} | (
        further if len(further | {*tensors}) < len(further) + len(tensors) else set()
    )
    return not taken & {*tensors} and "gradwire" not in metadata


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_each_file_that_is_saved_can_be_read(data, tmp_path_factory):
    root = tmp_path_factory.mktemp("tree")
    (root / "one" / "deep" / "deeper").mkdir(parents=True)
    (root / "two").mkdir()
    (root / "link").symlink_to(root / "one" / "deep")
    tensors, base = data.draw(trees()), None
    for _ in range(data.draw(st.integers(1, 4))):
        folder = root / data.draw(st.sampled_from(FOLDERS))
        path = folder / data.draw(st.sampled_from(["model.safetensors", "a b'é", "back\\slash"]))
        keys = st.one_of(st.text(max_size=3), st.just("gradwire"))
        metadata = data.draw(st.dictionaries(keys, st.text(max_size=9), max_size=2))
        lossless, mapped = data.draw(st.booleans()), data.draw(st.booleans())
        before = path.read_bytes() if path.exists() else None
        try:
            weights.save(path, tensors, metadata, lossless=lossless, base=base)
        except ValueError as error:
            told = str(error)
            assert (path.read_bytes() if path.exists() else None) == before
            near = base is None or ("is too far" not in told and "base of itself" not in told)
            if near:
                assert not is_writable(tensors, metadata), told
            return
        assert is_writable(tensors, metadata)
        assert not [name for name in os.listdir(path.parent) if name.startswith(".gradwire")]
        assert_reads(path, tensors, metadata, mapped)
        base = data.draw(st.sampled_from([path, None]))
        tensors = moved(data.draw, tensors)


@pytest.mark.parametrize("dtype", ["f2", "f4", ml_dtypes.bfloat16])
@pytest.mark.parametrize("numel", [1, 65_536, 131_073])
@pytest.mark.parametrize("change", ["nothing", "the last entry", "all entries"])
def test_blocks_of_any_length_come_back(dtype, numel, change, tmp_path):
    """The last block may have one entry: 65,537 halves of which the last changed."""
    old = np.zeros(numel, dtype)
    new = old.copy()
    if change != "nothing":
        new[-1 if change == "the last entry" else slice(None)] = 1.0
    weights.save(tmp_path / "a", {"w": old}, lossless=True)
    weights.save(tmp_path / "b", {"w": new}, base=tmp_path / "a")
    assert_reads(tmp_path / "a", {"w": old}, {}, True)
    assert_reads(tmp_path / "b", {"w": new}, {}, True)


@pytest.mark.parametrize(
    ("tensors", "metadata", "error", "message"),
    [
        ({1: np.ones(2)}, None, TypeError, "names must be strings, got 1"),
        ({"w": [1.0, 2.0]}, None, TypeError, "'w' must be an array or packed, got list"),
        ({"w": np.ma.masked_array([1.0], [True])}, None, TypeError, "got MaskedArray"),
        ({"w": np.ones(2, object)}, None, TypeError, "'w' is of object"),
        ({"w": np.ones(2, "M8[s]")}, None, TypeError, "'w' is of datetime"),
        ({"w": np.ones(2)}, {"step": 5}, ValueError, "'step' is not a string"),
        ({"\ud800": np.ones(2)}, None, ValueError, "no reader would take"),
        ({"w": np.ones(2)}, {"a": "\udfff"}, ValueError, "no reader would take"),
        ({"w" * (101 << 20): np.ones(2)}, None, ValueError, "at most 104857600 bytes"),
    ],
    ids=range(9),
)
def test_what_no_reader_takes_is_not_written(tensors, metadata, error, message, tmp_path):
    for options in ({}, {"lossless": True}):
        with pytest.raises(error, match=message):
            weights.save(tmp_path / "new", tensors, metadata, **options)
    assert not [*tmp_path.iterdir()]


def test_a_tensor_that_changes_its_size_while_it_is_saved_is_refused(tmp_path):
    class Growing(dict):
        def __getitem__(self, name):
            return np.ones(5000, np.float32)

    for lossless in (False, True):
        with pytest.raises(ValueError, match="'w' had 16 bytes, and has 20000 now"):
            weights.save(tmp_path / "a", Growing(w=np.ones(4, np.float32)), lossless=lossless)
    assert not [*tmp_path.iterdir()]
