"""Codecs from outside: the guide's file as an installed distribution, and what is refused."""

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import gradwire
from gradwire import extension
from gradwire.memory import LowPass, NoMemory, Residual
from gradwire.quantize import BFloat16
from gradwire.sparsify import TopK
from tests.outside_parts import Halves
from tests.support import run_python, same_state

GUIDE = Path(__file__).parent.parent / "docs" / "extending.md"


def install(folder: Path, name: str, source: str, entry_points: str) -> str:
    """Lay out a distribution of one module as an installer does; return the path to import from."""
    (folder / f"{name}.py").write_text(source)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    (info / "RECORD").write_text("")
    return str(folder)


@pytest.fixture
def guide(tmp_path: Path) -> str:
    """The distribution that the guide describes, installed."""
    text = GUIDE.read_text()
    (source,) = re.findall(r"`gradwire_above_mean.py`:\n\n```python\n(.*?)```", text, re.DOTALL)
    (project,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    entry_points = project.replace('project.entry-points."gradwire.presets"', "gradwire.presets")
    return install(tmp_path, "gradwire_above_mean", source, entry_points.replace('"', ""))


def test_the_guides_file_is_a_preset_like_any_other(guide):
    printed = run_python(
        """
        import json, pickle, sys
        import numpy as np
        import gradwire
        from gradwire.presets import PRESETS

        assert "gradwire_above_mean" not in sys.modules
        assert "above_mean" in PRESETS and "topk" in PRESETS
        assert "gradwire_above_mean" not in sys.modules
        assert list(PRESETS)[-1] == "above_mean" and len(PRESETS) == len(list(PRESETS))
        codec = gradwire.codec("above_mean", factor=2.0)
        assert codec == PRESETS["above_mean"].build(**PRESETS["above_mean"].example)
        assert gradwire.Codec.from_config(json.loads(json.dumps(codec.get_config()))) == codec
        assert pickle.loads(pickle.dumps(codec)) == codec

        # Trains: least squares, whose gradient is all that it is told.
        rng = np.random.default_rng(0)
        a = rng.standard_normal((400, 100)).astype(np.float32)
        truth = rng.standard_normal(100).astype(np.float32)
        w, state = np.zeros(100, np.float32), codec.init_state(100, name="w")
        for step in range(2000):
            gradient = a.T @ (a @ (w - truth)) / 400
            frame = codec.encode(gradient, state)
            assert frame.nbytes <= codec.max_encoded_len(100)
            header = frame.header()
            assert header["sparsifier"] == "custom"
            assert header["quantizer"] == ("custom:int8" if frame.count else "float32")
            gradwire.decode_add(frame, w, scale=-0.01)
        assert np.abs(w - truth).max() < 0.01, np.abs(w - truth).max()

        # Conserves, rolls back and resumes like all others.
        x = rng.standard_normal(5000).astype(np.float32)
        state = codec.init_state(5000)
        frame = codec.encode(x, state)
        assert np.array_equal(gradwire.decode(frame) + state.residual, x)
        again = codec.init_state(5000)
        again.load_state_dict(state.state_dict())
        second = bytes(codec.encode(x, state))
        assert bytes(codec.encode(x, again)) == second
        state.rollback()
        assert bytes(codec.encode(x, state)) == second
        limited = codec.encode(x, codec.init_state(5000), max_nbytes=300)
        assert 200 < limited.nbytes <= 300
        print(json.dumps(codec.get_config()))
        """,
        PYTHONPATH=guide,
    )
    assert json.loads(printed)["sparsify"] == {"kind": "above_mean", "factor": 2.0}


@pytest.mark.full
def test_the_guides_file_is_typed_strictly(guide):
    api = pytest.importorskip("mypy.api")
    options = ["--strict", "--config-file", str(GUIDE.parent.parent / "pyproject.toml")]
    told, _, code = api.run([*options, f"{guide}/gradwire_above_mean.py"])
    assert code == 0, told


def test_a_reader_finds_who_has_coded_a_frame(guide, tmp_path):
    run_python(
        """
        import sys
        from pathlib import Path
        import numpy as np
        from gradwire.presets import PRESETS

        codec = PRESETS["above_mean"].build()
        x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
        Path(sys.argv[1]).write_bytes(codec.encode(x, codec.init_state(1000)))
        """,
        str(tmp_path / "frame"),
        PYTHONPATH=guide,
    )
    printed = run_python(
        """
        import sys
        from gradwire.cli import main
        assert "gradwire_above_mean" not in sys.modules
        sys.exit(main(["inspect", sys.argv[1]]))
        """,
        str(tmp_path / "frame"),
        PYTHONPATH=guide,
    )
    assert "custom:int8" in printed


def test_a_configuration_finds_its_class_in_a_new_process(guide):
    codec = {"sparsify": {"kind": "above_mean", "factor": 4.0}}
    config = gradwire.topk(0.1).get_config() | codec
    printed = run_python(
        """
        import json, sys
        import gradwire

        codec = gradwire.Codec.from_config(json.loads(sys.argv[1]))
        print(codec)
        """,
        json.dumps(config),
        PYTHONPATH=guide,
    )
    assert printed == "gradwire.Codec(sparsify=gradwire_above_mean.AboveMean(factor=4.0))\n"


@pytest.mark.full
def test_it_trains_under_ddp(guide, tmp_path):
    pytest.importorskip("torch")
    run_python(
        """
        import sys
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        import gradwire.torch.ddp
        from gradwire.presets import PRESETS

        dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(200, 50))
        codec = PRESETS["above_mean"].build()
        handle = gradwire.torch.ddp.attach(model, codec)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        x, y = torch.randn(64, 200), torch.randn(64, 50)
        losses = []
        for _ in range(60):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.7 * losses[0], losses[::20]
        saved = handle.state_dict()
        handle.load_state_dict(saved)
        handle.detach()
        dist.destroy_process_group()
        """,
        str(tmp_path / "store"),
        PYTHONPATH=guide,
    )


def test_the_command_line_lists_it(guide):
    printed = run_python(
        "from gradwire.cli.codecs import main; assert main([]) == main(['--papers']) == 0",
        PYTHONPATH=guide,
    )
    assert printed.count("\nabove_mean ") == 1
    assert "gradwire_above_mean.above_mean(factor=2.0)" in printed


def test_what_cannot_be_used_is_named_and_nothing_is_shadowed(tmp_path):
    entry_points = """[gradwire.presets]
topk = broken:PRESET
gone = not_there:PRESET
number = broken:NUMBER
other = broken:PRESET
"""
    source = """
from gradwire.presets import PRESETS
NUMBER = 3
PRESET = PRESETS["sidco"]
"""
    run_python(
        """
        import warnings
        import gradwire
        from gradwire.presets import PRESETS

        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            names = list(PRESETS)
        assert "broken and gradwire both have a preset 'topk'" in str(seen[0].message)
        assert names.count("topk") == 1
        assert PRESETS["topk"].build is gradwire.topk
        for name, reason in [
            ("gone", "ModuleNotFoundError: No module named 'not_there'"),
            ("number", "must be a gradwire.presets.Preset, got 3"),
            ("other", "the entry point is named 'other', but its preset 'sidco'"),
        ]:
            try:
                PRESETS[name]
            except gradwire.PluginError as error:
                assert str(error).startswith(f"preset '{name}' from broken cannot be used"), error
                assert reason in error.reason, error
            else:
                raise AssertionError(name)
        try:
            gradwire.Codec.from_config(
                gradwire.topk(0.1).get_config() | {"sparsify": {"kind": "theirs"}}
            )
        except gradwire.PluginError as error:
            assert error.distribution == "broken"
        """,
        PYTHONPATH=install(tmp_path, "broken", source, entry_points),
    )


def test_frames_of_unknown_kinds_import_each_plugin_once(tmp_path):
    source = """
import os
with open(os.environ["IMPORTS"], "a") as file:
    file.write("x")
raise RuntimeError("not on this machine")
"""
    codec = gradwire.Codec(sparsify=TopK(k=3), memory=NoMemory(), quantize=Halves())
    (tmp_path / "frame").write_bytes(codec.encode(np.arange(10, dtype=np.float32)))
    run_python(
        """
        import sys
        import gradwire

        data = open(sys.argv[1], "rb").read()
        config = gradwire.topk(0.1).get_config() | {"sparsify": {"kind": "theirs"}}
        for _ in range(3):
            try:
                gradwire.decode(data)
            except gradwire.UnsupportedFrameError as error:
                assert error.found == "test_halves", error
                assert "not on this machine" in str(error.__cause__)
            else:
                raise AssertionError
            try:
                gradwire.Codec.from_config(config)
            except gradwire.PluginError as error:
                assert error.distribution == "raising" and "RuntimeError: not on" in error.reason
            else:
                raise AssertionError
        """,
        str(tmp_path / "frame"),
        PYTHONPATH=install(tmp_path, "raising", source, "[gradwire.presets]\na = raising:A\n"),
        IMPORTS=str(tmp_path / "imports"),
    )
    assert (tmp_path / "imports").read_text() == "x"


@dataclasses.dataclass(frozen=True, repr=False)
class Given(extension.Sparsifier):
    """Whatever it is told to select."""

    positions: tuple[int, ...] = ()
    most: int = 100
    dtype: str = "int64"
    kind: ClassVar[str] = "test_given"

    def select(self, values, *, step, key):
        assert not values.flags.writeable
        return np.array(self.positions, self.dtype)

    def max_count(self, numel):
        return min(self.most, numel)


class TestSelection:
    x: ClassVar = np.arange(10, dtype=np.float32)

    @pytest.mark.parametrize(
        "memory", [NoMemory(), Residual(), Residual(low_memory=True), LowPass()]
    )
    def test_is_that_of_encode_at(self, memory):
        codec = gradwire.Codec(sparsify=Given((1, 5, 9)), quantize=BFloat16(), memory=memory)
        plain = gradwire.Codec(sparsify=TopK(k=3), quantize=BFloat16(), memory=memory)
        own, other = codec.init_state(10), plain.init_state(10)
        for _ in range(3):
            frame = codec.encode(self.x, own)
            expected = plain.encode_at(self.x, other, np.array([1, 5, 9], np.uint32))
            assert np.array_equal(frame.indices(), expected.indices())
            assert np.array_equal(frame.values(), expected.values())
        assert (own.residual is None) or np.array_equal(own.residual, other.residual)

    @pytest.mark.parametrize(
        ("sparsify", "error", "message"),
        [
            (Given((3, 1)), ValueError, "positions must ascend strictly"),
            (Given((3, 10)), ValueError, r"positions in 0\.\.9, got 3\.\.10"),
            (Given((-1, 3)), ValueError, r"positions in 0\.\.9, got -1\.\.3"),
            (Given((1,), dtype="float32"), TypeError, "Given.select must return integers"),
            (Given((1, 2, 3), most=2), ValueError, "at most max_count = 2 positions, got 3"),
        ],
    )
    def test_is_checked_before_anything_changes(self, sparsify, error, message):
        codec = gradwire.Codec(sparsify=sparsify)
        state = codec.init_state(10)
        before = state.state_dict()
        with pytest.raises(error, match=message):
            codec.encode(self.x, state)
        assert same_state(state.state_dict(), before)

    def test_keys_depend_on_step_and_name_alone(self):
        keys = []

        class Keys(extension.Sparsifier):
            kind: ClassVar[str] = "test_keys"

            def select(self, values, *, step, key):
                keys.append((step, key))
                return np.array([], np.uint32)

        codec = gradwire.Codec(sparsify=Keys())
        for name, stream in [("a", 0), ("a", 1), ("b", 0)]:
            state = codec.init_state(10, name=name, stream=stream)
            codec.encode(self.x, state)
            codec.encode(self.x, state)
        assert keys[:2] == keys[2:4] != keys[4:]
        assert len({key for _, key in keys}) == 4
        assert [step for step, _ in keys] == [0, 1] * 3

    def test_an_empty_tensor_and_no_entry_are_fine(self):
        codec = gradwire.Codec(sparsify=Given())
        for n in (0, 1, 10):
            frame = codec.encode(np.ones(n, np.float32), codec.init_state(n))
            assert (frame.count, frame.numel) == (0, n)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("topk", "which gradwire.sparsify.TopK already uses"),
        ("test_given", "which tests.test_extension.Given already uses"),
        ("Two Words", "must be a lower-case identifier"),
        (3, "must be a lower-case identifier"),
    ],
)
def test_a_kind_has_one_class(kind, message):
    with pytest.raises(TypeError, match=message):
        type("Another", (extension.Sparsifier,), {"kind": kind})


def test_nothing_is_looked_for_before_it_is_asked_for():
    run_python(
        """
        import sys
        import gradwire
        gradwire.presets.PRESETS["topk"].build(0.1)
        gradwire.Codec.from_config(gradwire.topk(0.1).get_config())
        assert "importlib.metadata" not in sys.modules
        """
    )
    assert sys.modules["gradwire"] is gradwire
