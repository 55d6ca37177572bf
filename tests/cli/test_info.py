"""`gradwire info`."""

import importlib.metadata
import json
import os
import platform
import sys

import pytest

import gradwire
from gradwire.cli import main


@pytest.fixture
def without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)


def shown(capsys, *options):
    assert main(["info", *options]) == 0
    return capsys.readouterr().out


def test_json_has_what_a_report_of_a_bug_needs(without_torch, capsys):
    found = json.loads(shown(capsys, "--json"))
    assert found["gradwire"] == gradwire.__version__
    assert found["python"].startswith(platform.python_version())
    assert found["simd"].startswith(f"{gradwire.simd_level()} in use; this CPU has scalar")
    assert found["threads"].startswith(f"{gradwire.get_num_threads()} ")
    assert "transformers" in found["packages"]
    assert found["torch"].startswith("not installed: pip install")
    assert not [text for text in found.values() if text.startswith("not known")]


def test_text_fits_80_columns_and_names_neither_the_user_nor_the_machine(
    capsys, monkeypatch, tmp_path
):
    home = tmp_path / ("longer" * 10)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(platform, "node", lambda: "host-of-mine")
    monkeypatch.setenv("GRADWIRE_CACHE", f"{home}/cache")
    monkeypatch.setenv("GRADWIRE_CUDA_LIBRARY", f"{home}/none.so")
    monkeypatch.setenv("GRADWIRE_CUDA_TRIAL", "0")
    monkeypatch.setenv("GRADWIRE_DILOCO_TOKEN", "secret")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "host-of-mine\nµ")
    text = shown(capsys)
    assert max(map(len, text.splitlines())) <= 80
    assert text.isascii()
    for hidden in ("longer", "host-of-mine", "secret"):
        assert hidden not in text
    words = " ".join(text.split())
    assert "not known" not in words
    assert f"torch {importlib.metadata.version('torch')}" in words
    assert "backends cpu: cpu (" in words
    assert "cuda: host (the extension is as above: tensors are copied" in words
    assert "cuda trial off, by GRADWIRE_CUDA_TRIAL=0" in words
    assert "collectives gloo" in words
    assert "GRADWIRE_CACHE=~/cache; " in words
    assert "GRADWIRE_CUDA_TRIAL=0; " in words
    assert "GRADWIRE_DILOCO_TOKEN=(set)" in words
    assert "~/none.so, which is not a file" in words


def test_the_levels_of_the_cpu_are_shown_where_a_lower_one_is_in_use(
    without_torch, capsys, monkeypatch
):
    monkeypatch.setenv("GRADWIRE_SIMD", "scalar")
    monkeypatch.setattr(gradwire, "simd_level", lambda: "scalar")
    best = os.popen(
        f"GRADWIRE_SIMD= {sys.executable} -c 'import gradwire; print(gradwire.simd_level())'"
    )
    found = json.loads(shown(capsys, "--json"))
    assert found["simd"].startswith("scalar in use; this CPU has scalar")
    assert found["simd"].endswith(best.read().strip())
    assert "GRADWIRE_SIMD=scalar" in found["environment"]


def test_what_breaks_is_the_answer(capsys, monkeypatch, tmp_path):
    def broken():
        raise OSError("no such\nplatform")

    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("import os; os.abort()")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setitem(gradwire.cli.info._FACTS, "platform", broken)
    found = json.loads(shown(capsys, "--json"))
    assert found["platform"] == "not known: OSError: no such platform"
    assert found["torch"].startswith(
        "not known: RuntimeError: the process that was asked exited with"
    )
    monkeypatch.setattr(sys, "executable", "")
    assert json.loads(shown(capsys, "--json"))["torch"].startswith("not known: ")
