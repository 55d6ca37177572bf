"""`gradwire info`."""

import importlib.metadata
import json
import platform
import sys

import gradwire
from gradwire.cli import main


def shown(capsys, *options):
    assert main(["info", *options]) == 0
    return capsys.readouterr().out


def test_json_has_what_a_report_of_a_bug_needs_also_without_torch(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    found = json.loads(shown(capsys, "--json"))
    assert found["gradwire"] == gradwire.__version__
    assert found["python"].startswith(platform.python_version())
    assert found["simd"] == gradwire.simd_level()
    assert found["threads"].startswith(f"{gradwire.get_num_threads()} ")
    assert "transformers" in found["packages"]
    assert found["torch"].startswith("not known: ModuleNotFoundError: import of torch")
    assert not found["platform"].startswith("not known")


def test_text_names_neither_the_user_nor_the_machine(capsys, monkeypatch, tmp_path):
    home = tmp_path / ("longer" * 10)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(platform, "node", lambda: "host-of-mine")
    monkeypatch.setenv("GRADWIRE_CACHE", f"{home}/cache")
    monkeypatch.setenv("GRADWIRE_CUDA_LIBRARY", f"{home}/none.so")
    monkeypatch.setenv("GRADWIRE_CUDA_TRIAL", "0")
    monkeypatch.setenv("GRADWIRE_DILOCO_TOKEN", "secret")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "host-of-mine\n")
    text = shown(capsys)
    for hidden in ("longer", "host-of-mine", "secret"):
        assert hidden not in text
    words = " ".join(text.split())
    assert "not known" not in words
    assert f"torch {importlib.metadata.version('torch')}" in words
    assert "backends cpu: cpu (" in words
    assert "collectives gloo" in words
    assert "GRADWIRE_CACHE=~/cache; " in words
    assert "GRADWIRE_CUDA_TRIAL=0; " in words
    assert "GRADWIRE_DILOCO_TOKEN=(set)" in words


def test_what_breaks_is_the_answer(capsys, monkeypatch):
    def broken():
        raise OSError("no such\nplatform")

    monkeypatch.setitem(gradwire.cli.info._FACTS, "platform", broken)
    found = json.loads(shown(capsys, "--json"))
    assert found["platform"] == "not known: OSError: no such platform"
