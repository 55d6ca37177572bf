"""`gradwire codecs`."""

import json

import pytest

import gradwire
from gradwire.cli import main
from gradwire.presets import PRESETS


def test_lists_every_preset_with_its_paper(capsys):
    assert main(["codecs", "--papers"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for preset in PRESETS.values():
        assert f"gradwire.{preset.name}(" in out
        assert preset.summary in out
        assert out.count("(") == out.count(")")
        assert preset.paper is None or preset.paper in out


def test_without_options_it_is_a_table(capsys):
    assert main(["codecs"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    for preset in PRESETS.values():
        assert f"{preset.name} {preset.summary}" in words
        assert preset.paper is None or preset.paper not in words


def test_one_preset_is_shown_with_its_parts(capsys):
    assert main(["codecs", "dgc"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("gradwire.dgc(ratio=0.01) ")
    assert repr(gradwire.dgc(ratio=0.01)) in out
    assert str(PRESETS["dgc"].paper) in out
    assert "topk" not in out
    assert main(["codecs", "dgc", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == ["dgc"]


def test_a_name_that_is_none_gets_those_like_it(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["codecs", "tpok"])
    assert caught.value.code == 2
    assert "there is no preset 'tpok': did you mean topk?" in capsys.readouterr().err


def test_json(capsys):
    assert main(["codecs", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in listed] == list(PRESETS)
    calls = {entry["name"]: entry["call"] for entry in listed}
    assert calls["topk"] == "gradwire.topk(ratio=0.01)"
    signatures = {entry["name"]: entry["signature"] for entry in listed}
    assert signatures["topk"] == "topk(ratio=None, *, k=None)"
