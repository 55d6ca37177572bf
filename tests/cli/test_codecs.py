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
        assert preset.paper is None or preset.paper in out


def test_json(capsys):
    assert main(["codecs", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listed] == list(PRESETS)
    calls = {entry["name"]: entry["call"] for entry in listed}
    assert calls["topk"] == "gradwire.topk(ratio=None, *, k=None)"
    assert all(getattr(gradwire, entry["name"]) for entry in listed)
