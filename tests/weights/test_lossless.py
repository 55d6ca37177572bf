"""Files of codes without loss, and of differences: every bit comes back, or an error says why."""

import json
import os
import resource
import signal
import subprocess
import sys
import textwrap

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from gradwire import weights
from gradwire.errors import CorruptFileError
from gradwire.weights import header, saving
from tests.weights import plain_coded_reader
from tests.weights.containers import put_together, taken_apart

RANDOM = np.random.default_rng(8)
ODD = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3e38], np.float32)


def layer(*shape, dtype=np.float32):
    return (0.02 * RANDOM.normal(size=shape)).astype(dtype)


@pytest.fixture(scope="module")
def tensors():
    return {
        "half": layer(70_000, dtype=np.float16),
        "ids": np.arange(9),
        "brain": layer(300, 500, dtype=ml_dtypes.bfloat16),
        "odd": np.tile(ODD, 1000).view(np.uint32).view(np.float32),
        "none": np.zeros((0, 3), np.float32),
        "scalar": np.float32(3.0).reshape(()),
        "noise": RANDOM.integers(0, 2**32, 5000, dtype=np.uint32).view(np.float32),
        "double": RANDOM.normal(size=40),
    }


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new.safetensors"


def assert_same(found, expected):
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


def moved(tensors):
    """A step later: some entries one float up or down."""

    def step(array):
        if array.dtype.kind not in "fV" or array.dtype == np.float64:
            return array + 1
        whole = array.view(f"u{array.itemsize}")
        # Where most are as they were, several lengths are one symbol.
        share = 0.5 if array.ndim == 1 else 0.05
        up = (RANDOM.random(array.shape) < share).astype(whole.dtype)
        return (whole + up).view(array.dtype)

    return {name: step(array) for name, array in tensors.items()}


def chain(tensors, folder, count):
    """A lossless file, and so many differences one after the other; and all their tensors."""
    values, paths = [tensors], [folder / "step-0.safetensors"]
    weights.save(paths[0], tensors, lossless=True)
    for step in range(1, count + 1):
        values.append(moved(values[-1]))
        paths.append(folder / f"step-{step}.safetensors")
        weights.save(paths[-1], values[-1], base=paths[-2])
    return values, paths


def test_every_bit_comes_back(tensors, path):
    weights.save(path, tensors, {"about": "x"}, lossless=True)
    with weights.open(path) as file:
        assert list(file) == list(tensors)
        assert file.metadata == {"about": "x"}
        for name, array in tensors.items():
            assert_same(file[name], array)
        coded = {name for name in file if file.coding_of(name)}
    # What does not shrink, and what is no float of up to 32 bits, is there as it was.
    assert coded == {"half", "brain", "odd"}
    plain = safetensors.numpy.load_file(path)
    for name in tensors.keys() - coded:
        assert_same(plain[name], np.asarray(tensors[name]))


def test_bits_and_values_that_repeat_take_hardly_anything(path):
    x = layer(1 << 18)
    narrow = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    pruned = np.where(RANDOM.random(x.size) < 0.9, np.float32(0), x)
    for array, share in (
        (x.astype(ml_dtypes.bfloat16), 0.662),
        (narrow, 0.34),
        (np.zeros_like(x), 0.01),
        (pruned, 0.11),
        (-pruned, 0.11),
        (pruned.astype(ml_dtypes.bfloat16), 0.11),
    ):
        weights.save(path, {"w": array}, lossless=True)
        assert path.stat().st_size < share * array.nbytes + 500, share
        with weights.open(path) as file:
            assert_same(file["w"], array)
        assert plain_coded_reader.read(path)[0]["w"] == array.tobytes()


def test_a_tensor_of_many_pieces_comes_back_with_any_number_of_threads(path):
    import gradwire

    array = layer(2 * (16 << 16) + 7, dtype=np.float16)
    before = gradwire.get_num_threads()
    try:
        files = set()
        for threads in (1, 3):
            gradwire.set_num_threads(threads)
            weights.save(path, {"w": array}, lossless=True)
            assert_same(weights.open(path)["w"], array)
            files.add(path.read_bytes())
    finally:
        gradwire.set_num_threads(before)
    assert len(files) == 1


def rewritten(path, change):
    """The file with its metadata changed."""
    fields, body = taken_apart(path.read_bytes())
    about = json.loads(fields["__metadata__"]["gradwire"])
    change(about, fields)
    fields["__metadata__"]["gradwire"] = json.dumps(about)
    path.write_bytes(put_together(fields, body))


def read_all(path):
    with weights.open(path) as file:
        return {name: np.array(file[name]) for name in file}


FOLDERS = [
    ("checkpoint-100/model", "checkpoint-200/model", "../checkpoint-100/model"),
    ("a", "small/b", "../a"),
    ("v0/checkpoints/a", "v1/checkpoints/a", "../../v0/checkpoints/a"),
    ("base/a", "b", "base/a"),
    ("a", "link/b", "../../a"),  # the link leads to v1/checkpoints
]


@pytest.mark.parametrize(("base", "new", "name"), FOLDERS)
def test_a_base_may_be_in_a_folder_near_by(tensors, tmp_path, base, new, name, monkeypatch):
    """As trainers write them; the folders may then be moved together."""
    root = tmp_path / "root"
    for folder in ("checkpoint-100", "checkpoint-200", "v0/checkpoints", "v1/checkpoints", "base"):
        (root / folder).mkdir(parents=True)
    (root / "small").mkdir()
    (root / "link").symlink_to("v1/checkpoints")
    after = moved(tensors)
    monkeypatch.chdir(root)
    weights.save(base, tensors)
    weights.save(new, after, base=base)
    root.rename(tmp_path / "moved")
    with weights.open(tmp_path / "moved" / new) as file:
        assert file._about.base["name"] == name
        for each, array in after.items():
            assert_same(file[each], array)
    found, _ = plain_coded_reader.read(tmp_path / "moved" / new)
    assert found == {each: array.tobytes() for each, array in after.items()}


@pytest.mark.parametrize("base", ["a", "x/a", "new/deep/a\\b"])
def test_a_base_that_no_name_leads_to_is_refused(tensors, tmp_path, base):
    for folder in ("new/deep/er/est", "x"):
        (tmp_path / folder).mkdir(parents=True)
    weights.save(tmp_path / base, tensors)
    with pytest.raises(ValueError, match="too far from"):
        weights.save(tmp_path / "new/deep/er/est/b", tensors, base=tmp_path / base)
    assert not [*(tmp_path / "new/deep/er/est").iterdir()]


def test_a_base_that_changed_is_found_by_its_digest(tensors, tmp_path):
    values, paths = chain(tensors, tmp_path, 2)
    other = dict(values[0], ids=values[0]["ids"] + 1)
    weights.save(paths[0], other)
    for path in paths[1:]:
        with weights.open(path) as file, pytest.raises(CorruptFileError, match=r"step-0.*SHA-256"):
            file["half"]


@pytest.mark.parametrize("other", [np.zeros(70_001, np.float16), np.zeros(70_000), None])
def test_a_base_of_another_shape_dtype_or_name_is_refused(tensors, tmp_path, other):
    values, paths = chain(tensors, tmp_path, 1)
    kept = {name: array for name, array in values[0].items() if name != "half"}
    weights.save(paths[0], kept if other is None else kept | {"half": other})
    with pytest.raises(CorruptFileError, match=r"'half'.*step-0"):
        weights.open(paths[1])


def test_bases_in_a_circle_are_refused(tensors, tmp_path):
    _, paths = chain(tensors, tmp_path, 2)
    rewritten(paths[1], lambda about, _: about["base"].update(name=paths[2].name))
    for path in paths[1:]:
        with pytest.raises(CorruptFileError, match="a difference from it"):
            weights.open(path)
    rewritten(paths[1], lambda about, _: about["base"].update(name=paths[1].name))
    with pytest.raises(CorruptFileError, match="a difference from it"):
        weights.open(paths[1])


def test_no_more_bases_than_the_limit(tmp_path):
    small = {"w": np.zeros(5000, np.float32)}
    values, paths = chain(small, tmp_path, header.MOST_BASES)
    assert_same(weights.open(paths[-1])["w"], values[-1]["w"])
    more = tmp_path / "more"
    with pytest.raises(ValueError, match="save this file in full"):
        weights.save(more, small, base=paths[-1])
    # A file that was written so by somebody else.
    more.write_bytes(paths[-1].read_bytes())
    rewritten(more, lambda about, _: about["base"].update(name=paths[-1].name))
    with pytest.raises(CorruptFileError, match="more than 16 bases"):
        weights.open(more)


@pytest.mark.parametrize("which", [0, 1])
def test_no_base_is_overwritten(tensors, tmp_path, which):
    values, paths = chain(tensors, tmp_path, 1)
    before = [path.read_bytes() for path in paths]
    link = tmp_path / "link"
    link.symlink_to(paths[which].name)
    for target in (paths[which], link):
        with pytest.raises(ValueError, match="a base of itself"):
            weights.save(target, values[1], base=paths[1])
    assert [path.read_bytes() for path in paths] == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda about, _: about["base"].update(name="../../../x"), "the name of its base"),
        (lambda about, _: about["base"].update(sha256="5"), "the SHA-256 of its base"),
        (lambda about, _: about.pop("base"), "differences, and no base"),
        (lambda about, _: about["tensors"]["half"].pop("coding"), "it holds no packed|not a frame"),
        (lambda about, _: about["tensors"]["half"].update(coding="lossless"), "codes|block"),
        (lambda about, _: about["tensors"]["brain"].update(shape=[1 << 40]), "do not hold"),
    ],
)
def test_metadata_that_is_wrong_is_refused(tensors, tmp_path, change, message):
    _, paths = chain(tensors, tmp_path, 1)
    rewritten(paths[1], change)
    with pytest.raises(CorruptFileError, match=message):
        read_all(paths[1])


def test_every_flip_of_codes_is_found_and_every_prefix(path):
    array = layer(300, dtype=np.float16)
    weights.save(path, {"w": np.tile(array, 2)}, lossless=True)
    data = path.read_bytes()
    with weights.open(path) as file:
        assert file.coding_of("w")
        nbytes = len(file.data("w"))
    for bit in range(0, 8 * nbytes, 29):
        flipped = bytearray(data)
        flipped[len(data) - nbytes + bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(CorruptFileError):
            read_all(path)
    for end in range(0, len(data), 23):
        path.write_bytes(data[:end])
        with pytest.raises(CorruptFileError):
            read_all(path)


def test_codes_whose_checksum_is_right_and_that_are_wrong_are_found(path):
    """As somebody would write them who wants harm."""
    from gradwire import _native

    array = layer(300, dtype=np.float16)
    weights.save(path, {"w": np.tile(array, 2)}, lossless=True)
    data = path.read_bytes()
    with weights.open(path) as file:
        nbytes = len(file.data("w"))
    codes = bytearray(data[-nbytes + 4 :])
    for bit in range(0, 8 * len(codes), 13):
        codes[bit // 8] ^= 1 << bit % 8
        check = _native.crc32c(codes).to_bytes(4, "little")
        path.write_bytes(data[:-nbytes] + check + codes)
        try:
            found = read_all(path)["w"]
        except CorruptFileError:
            pass
        else:
            assert found.shape == (600,)
        codes[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("nbytes", [0, 100, 4000, 100_000])
@pytest.mark.full
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tensors, tmp_path, nbytes):
    _, paths = chain(tensors, tmp_path, 1)
    path = tmp_path / "new"
    path.write_bytes(b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large.*new"):
            weights.save(path, tensors, lossless=True)
        if nbytes < 4000:
            with pytest.raises(OSError, match=r"File too large.*new"):
                weights.save(path, moved(tensors), base=paths[1])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == b"old"
    assert {*tmp_path.iterdir()} == {*paths, path}


def test_a_difference_is_saved_in_little_memory_beside_the_tensors(tmp_path):
    program = """
        import resource, sys
        import numpy as np
        from gradwire import weights

        array = np.ones((1 << 25,), np.float32) * np.float32(1.5)
        bits = array.view(np.uint32)
        bits[::3] += 1
        weights.save("base", {"w": array}, lossless=True)
        bits[::5] += 2
        weights.save("first", {"w": array}, base="base")
        bits[::7] += 2
        def peak():
            lines = open("/proc/self/status").read().splitlines()
            return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
        def now():
            lines = open("/proc/self/status").read().splitlines()
            return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])
        open("/proc/self/clear_refs", "w").write("5")
        before = now()
        weights.save("second", {"w": array}, base="first")
        print((peak() - before) / 1024)
    """
    environment = os.environ | {"GRADWIRE_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
    )
    assert float(done.stdout) < 64


def odd_header(order, spaces):
    """A file as no library writes it: spaces, tensors not in the order of their places."""
    arrays = {"b": layer(3000), "a": np.arange(5), "c": layer(2000, dtype=np.float16)}
    at, entries = 0, {}
    kinds = {"b": "F32", "a": "I64", "c": "F16"}
    for name in order:
        end = at + arrays[name].nbytes
        shape = list(arrays[name].shape)
        entries[name] = {"shape": shape, "data_offsets": [at, end], "dtype": kinds[name]}
        at = end
    fields = {name: entries[name] for name in sorted(entries)}
    fields["__metadata__"] = {"z": "1", "é": "2"}
    text = json.dumps(fields, indent=1, ensure_ascii=False).encode() + b" " * spaces
    return put_together(text, b"".join(arrays[name].tobytes() for name in order))


@pytest.mark.parametrize("order", ["abc", "cab", "bca"])
@pytest.mark.parametrize("spaces", [0, 3, 2000])
def test_a_file_comes_back_byte_for_byte(tmp_path, order, spaces):
    path, small, back = (tmp_path / name for name in ("in", "small", "back"))
    path.write_bytes(odd_header(order, spaces))
    with weights.open(path) as file:
        sections = saving.sections_of(file)
        saving.write(small, sections, file.metadata, lossless=True, original=file.header)
        assert plain_coded_reader.read(small)[1] == file.header
    with weights.open(small) as file:
        assert file.metadata == {"z": "1", "é": "2"}
        saving.restore(file, back)
    assert back.read_bytes() == path.read_bytes()
    assert small.stat().st_size < path.stat().st_size


def test_an_original_header_of_other_tensors_is_refused(tensors, tmp_path):
    path, small = tmp_path / "in", tmp_path / "small"
    weights.save(path, tensors)
    with weights.open(path) as file:
        saving.write(small, saving.sections_of(file), None, lossless=True, original=file.header)

    def other(about, fields):
        fields["other"] = fields.pop("ids")

    rewritten(small, other)
    with weights.open(small) as file, pytest.raises(CorruptFileError, match="other tensors"):
        saving.restore(file, tmp_path / "back")
    assert not (tmp_path / "back").exists()
