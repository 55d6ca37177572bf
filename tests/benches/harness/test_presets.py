"""``python -m benches.presets``: what it makes of its figures, and a run from end to end."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from benches.harness.starting import ROOT
from benches.presets.__main__ import main
from benches.presets.results import OtherConditionsError, Results, Run

for needed in ("torch", "sklearn", "rich", "matplotlib"):
    pytest.importorskip(needed, reason="the command needs the layer demo")


def entry(method: str, **figures: object) -> Run:
    usual = {
        "task": "digits",
        "method": method,
        "call": "",
        "feedback": method == "topk",
        "steps": 300,
        "bytes_per_step": 4000.0,
        "dense_bytes_per_step": 4000.0,
        "encode_ms": None,
        "decode_ms": None,
        "step_ms": 10.0,
        "loss": 0.1,
        "accuracy": 0.98,
        "replicas_identical": True,
        "optimizer": "SGD(0.9)",
        "learning_rate": 0.128,
    }
    return Run(**(usual | figures))  # type: ignore[arg-type]


def comparison(*runs: Run) -> Results:
    facts = {"parameters": 1000, "held_out_images": 359}
    return Results(
        settings={"ranks": 2, "threads_per_rank": 1},
        machine={"cores": 2, "processor": "a processor"},
        versions={"gradwire": "0.1.0"},
        tasks={"digits": facts},
        runs=list(runs),
    )


PLAIN = entry("none")
TOPK = entry("topk", bytes_per_step=100.0, encode_ms=1.5, decode_ms=0.25, accuracy=0.97)


def test_a_saved_comparison_can_be_read_back():
    made = comparison(PLAIN, TOPK)
    assert Results.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_figures_are_put_into_a_page():
    from benches.presets.markdown import document

    page = document(comparison(PLAIN, TOPK))
    assert "| topk | 0.1 | 40.0 | 1.50 | 0.25 | 0.100 | 97.0 | +1.0 | SGD(0.9) | 0.128 |" in page
    assert "| no compression | 4.0 | 1.0 |  |  | 0.100 | 98.0 | +0.0 | SGD(0.9) | 0.128 |" in page
    assert "best of one grid for all methods" in " ".join(page.split())
    assert "| topk | `gradwire.topk(ratio=0.01)` | Aji, Heafield" in page
    assert "no preset with error feedback is more than 1.5 points behind" in page
    assert "One of them is 0.3 points" in page
    assert "These are single runs" in page


def test_several_seeds_are_shown_by_mean_and_range():
    from benches.presets.markdown import document
    from benches.presets.table import row

    runs = [
        entry("none", seed=0, accuracy=0.98),
        entry("none", seed=1, accuracy=0.96),
        entry("topk", seed=0, accuracy=0.97, bytes_per_step=100.0),
        entry("topk", seed=1, accuracy=0.965, bytes_per_step=300.0),
    ]
    made = comparison(*runs)
    made.settings["seeds"] = 2
    none, topk = made.of("digits")
    assert (none.bytes_per_step, topk.bytes_per_step) == (4000.0, 200.0)
    # Beside the run without compression of the same seed: 1.0 behind, then 0.5 ahead.
    assert row(topk)[-1].endswith(" (-0.5 to +1.0)")
    assert row(none)[-1] == "+0.0 (+0.0 to +0.0)"
    assert "mean over 2 seeds" in document(made)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"accuracy": 0.96}, "more than 1.5 points behind: topk (2.0)"),
        ({"replicas_identical": False}, "WARNING: the ranks' models differ after digits/topk"),
    ],
)
def test_what_is_wrong_is_said(changed, said):
    from benches.presets.table import reading

    assert any(said in line for line in reading(comparison(PLAIN, entry("topk", **changed))))


def test_the_picture_depends_on_the_figures_alone(tmp_path):
    from benches.presets.picture import draw

    made = comparison(PLAIN, TOPK)
    for name in ("a.svg", "b.svg"):
        draw(made, tmp_path / name)
    drawn = (tmp_path / "a.svg").read_text()
    assert drawn == (tmp_path / "b.svg").read_text()
    assert ">topk<" in drawn
    assert "prefers-color-scheme: dark" in drawn


def test_names_in_the_picture_do_not_cover_each_other():
    from matplotlib import pyplot as plt
    from matplotlib.text import Annotation, Text

    from benches.presets import picture

    # Fifteen methods that differ by little, as in a real comparison.
    methods = [entry("none"), *(entry(f"m{i}", bytes_per_step=40 * 1.2**i) for i in range(15))]
    made = comparison(*methods)
    figure, axes = plt.subplots(figsize=(9, 5))
    picture._panel(axes, made, "digits")
    figure.draw_without_rendering()
    picture._name_points(axes, made.of("digits"))
    names = [each for each in axes.get_children() if isinstance(each, Annotation)]
    figure.canvas.draw()
    boxes = [Text.get_window_extent(each) for each in names]  # without the line to the point
    plt.close(figure)
    assert len(boxes) == 16
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[i + 1 :])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--codec", "tpok"], "unknown preset tpok; choose from adam"),
        (["--task", "chess"], "unknown task chess; choose from digits, text"),
        (["--steps", "1"], "'1' is not an integer of at least 2"),
        (["--seeds", "0"], "'0' is not an integer of at least 1"),
        (["--ranks", "one"], "'one' is not an integer of at least 2"),
        (["--learning-rate", "fast"], "'fast' is not a learning rate"),
    ],
)
def test_wrong_arguments_are_named(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.full
def test_from_end_to_end(tmp_path):
    command = [sys.executable, "-m", "benches.presets", "--out", str(tmp_path)]
    options = ["--task", "digits", "--codec", "topk,dense,adam", "--steps", "6", "--seeds", "2"]
    options += ["--learning-rate", "0.05"]
    done = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "In every run, all ranks ended with bit-identical models." in done.stdout
    figures = Results.from_json(json.loads((tmp_path / "codecs.json").read_text()))
    methods = ["none", "bf16", "adam", "topk", "dense"]
    assert [(e.method, e.seed) for e in figures.runs] == [
        (method, seed) for method in methods for seed in (0, 1)
    ]
    first, second = ({e.method: e for e in figures.runs if e.seed == s} for s in (0, 1))
    assert first["none"].loss != second["none"].loss
    runs = first
    assert runs["topk"].ratio > 10
    # Every entry in float32: the same training as without compression.
    assert runs["dense"].loss == pytest.approx(runs["none"].loss, rel=1e-5)
    assert {e.learning_rate for e in figures.runs} == {0.05}
    assert runs["topk"].optimizer == "SGD(0)"
    assert runs["adam"].optimizer == "gradwire AdamW(0.9, 0.999)"
    assert "| topk |" in (tmp_path / "codecs.md").read_text()
    assert "<svg" in (tmp_path / "codecs.svg").read_text()

    options[3] = "topk,onebit"
    added = subprocess.run(
        [*command, *options, "--add"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert added.returncode == 0, added.stderr
    both = Results.from_json(json.loads((tmp_path / "codecs.json").read_text()))
    old = [each for each in both.runs if each.method != "onebit"]
    assert set(old) == set(figures.runs)  # to the millisecond: none was made again
    assert [e.seed for e in both.runs if e.method == "onebit"] == [0, 1]
    page = (tmp_path / "codecs.md").read_text()
    assert "| onebit |" in page
    assert "| adam |" in page


def test_only_missing_runs_of_equal_conditions_are_added(tmp_path, capsys):
    made = comparison(PLAIN, TOPK)
    again = made.with_run(entry("topk", loss=0.2), made.tasks["digits"])
    assert [(e.method, e.loss) for e in again.runs] == [("none", 0.1), ("topk", 0.2)]
    assert made.with_run(entry("bf16"), {}).runs[1].method == "bf16"
    made.check_conditions(again)
    other = replace(made, versions={"gradwire": "0.0.9"})
    with pytest.raises(OtherConditionsError, match=r"gradwire 0\.0\.9, and now it is 0\.1\.0"):
        other.check_conditions(made)
    (tmp_path / "codecs.json").write_text("[]")
    assert main(["--add", "--out", str(tmp_path), "--codec", "topk"]) == 1
    assert "is not a result of this command" in capsys.readouterr().err
