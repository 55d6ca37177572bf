"""`gradwire codecs`."""

import json

import gradwire
from gradwire.cli import main
from gradwire.presets import PRESETS


def test_lists_every_preset_with_its_paper(capsys):
    assert main(["codecs"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for preset in PRESETS.values():
        assert f"gradwire.{preset.name}(" in out
        assert preset.summary in out
        assert out.count("(") == out.count(")")
        assert preset.paper is None or preset.paper in out


def test_json(capsys):
    assert main(["codecs", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listed] == list(PRESETS)
    calls = {entry["name"]: entry["call"] for entry in listed}
    assert calls["topk"] == "gradwire.topk(ratio=0.01)"
    signatures = {entry["name"]: entry["signature"] for entry in listed}
    assert signatures["topk"] == "topk(ratio=None, *, k=None)"


def test_every_call_that_is_printed_makes_a_codec(capsys):
    assert main(["codecs"]) == 0
    calls = [line for line in capsys.readouterr().out.splitlines() if line.startswith("gradwire.")]
    assert len(calls) == len(PRESETS)
    for call in calls:
        assert isinstance(eval(call, {"gradwire": gradwire}), gradwire.Codec)
