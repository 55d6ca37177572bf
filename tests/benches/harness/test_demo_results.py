"""What the demo makes of its measurements: figures, tables, words, a picture."""

from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="the demo's picture needs the layer demo")

from benches.demo import picture
from benches.demo.results import comparisons, shown
from benches.harness import theme

STEPS = 100


def a_run(method: str, step: float, final: float, rate: int = 100_000_000) -> dict[str, Any]:
    """Return a run whose loss falls in a straight line from 2 to ``final``."""
    curve = [
        {"seconds": at * step, "loss": 2 + (final - 2) * at / STEPS, "accuracy": at / STEPS}
        for at in range(0, STEPS + 1, 10)
    ]
    return {
        "task": "digits",
        "method": method,
        "rate": rate,
        "step_seconds": [step] * STEPS,
        "curve": curve,
        "bytes_per_step": 5e4,
        "wire_bytes_per_step": 6e4,
        "replicas_identical": True,
        "optimizer": "SGD(0)",
        "learning_rate": 0.5,
        "rate_source": "that of topk",
    }


def compared(*runs: dict[str, Any]) -> Any:
    tasks = {"digits": {"title": "handwritten digits"}}
    return comparisons({"tasks": tasks, "runs": list(runs)})


SLOW_LINK = (
    a_run("none", 0.2, 0.1),
    a_run("bf16", 0.1, 0.1),
    a_run("topk", 0.025, 0.2),
    a_run("sidco", 0.02, 0.2),
)


def test_the_same_loss_is_what_all_reached_and_tables_say_when():
    (found,) = compared(*SLOW_LINK)
    run = found.runs[3]
    assert (run.step, run.sent) == (0.02, 6e4)
    assert run.seconds_to_loss(1.1) == pytest.approx(1.0)
    assert run.seconds_to_loss(0.19) == pytest.approx(2.0)
    assert run.seconds_to_loss(2.5) == 0.0
    assert found.equal_loss == pytest.approx(0.2)
    text = shown([found])
    (row,) = (line.split() for line in text.splitlines() if line.startswith("sidco "))
    assert row[1:8] == ["20.0", "60", "kB", "10.00x", "0.200", "100.0", "2.0"]
    verdict, replicas = text.splitlines()[-2:]
    assert verdict == (
        "* digits, 100 Mbit/s: compression pays: sidco reaches loss 0.200 after 2.0 s, bf16 hook "
        "after 9.5 s; its steps are 5.0x as fast."
    )
    assert replicas == "* In every run, all ranks ended with bit-identical models."
    broken = [a_run("none", 0.2, 0.1), {**a_run("topk", 0.2, 0.1), "replicas_identical": False}]
    assert "models differ after digits/topk. Please report" in shown(compared(*broken))


@pytest.mark.parametrize(
    ("methods", "links"),
    [
        (["none"], [100_000_000]),
        (
            ["none", "bf16", "sampled_topk", "adam_onebit", "sparseloco", "momentum_topk", "dgc"],
            [100_000_000, 1_000_000_000],
        ),
    ],
)
def test_the_picture_has_its_whole_legend_and_a_time_axis_for_each_link(
    methods, links, tmp_path, monkeypatch
):
    figures = []
    monkeypatch.setattr(theme.plt, "close", figures.append)
    runs = [
        a_run(method, 1e7 / rate * (at + 1), 1.0, rate)
        for rate in links
        for at, method in enumerate(methods)
    ]
    picture.draw(compared(*runs), 0.01, tmp_path / "demo.png")
    (figure,) = figures
    figure.canvas.draw()
    (legend,) = figure.legends
    assert len(legend.get_texts()) == len(methods)
    box = legend.get_window_extent()
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
    assert box.y1 <= figure.bbox.y1
    for axes, rate in zip(figure.axes, links, strict=True):
        longest = STEPS * 1e7 / rate * len(methods)
        assert longest <= axes.get_xlim()[1] < 1.2 * longest
        assert axes.get_window_extent().y1 < box.y0
