"""What the demo makes of its measurements: figures, tables, words, a picture."""

from typing import Any

import pytest

pytest.importorskip("rich", reason="the demo's tables need the layer demo")
pytest.importorskip("matplotlib", reason="the demo's picture needs the layer demo")


from benches.demo import picture
from benches.demo.results import Results, Run
from benches.demo.table import reading

STEPS = 100


def a_run(method: str, step: float, final: float, nbytes: float, **changes: Any) -> Run:
    """Return a run whose loss falls in a straight line from 2 to ``final``."""
    curve = [
        {
            "step": at,
            "seconds": at * step,
            "loss": 2 + (final - 2) * at / STEPS,
            "accuracy": at / STEPS,
        }
        for at in range(0, STEPS + 1, 10)
    ]
    fields: dict[str, Any] = {
        "task": "digits",
        "method": method,
        "rate": 100_000_000,
        "steps": STEPS,
        "parameters": 500_000,
        "step_seconds": [step] * STEPS,
        "training_loss": [1.0] * STEPS,
        "curve": curve,
        "bytes_per_step": nbytes,
        "dense_bytes_per_step": 2e6,
        "wire_bytes_per_step": 1.05 * nbytes,
        "achieved": 1.0,
        "replicas_identical": True,
        "compute_seconds": 0.02,
    }
    return Run(**(fields | changes))


def some_results(*runs: Run) -> Results:
    return Results(
        settings={"ratio": 0.01, "ranks": 2},
        machine={"cores": 2},
        versions={"torch": "2"},
        link={"shaped": True, "why_not": None},
        tasks={"digits": {"title": "convolutional network, handwritten digits"}},
        runs=list(runs),
    )


SLOW_LINK = (
    a_run("none", 0.2, 0.1, 2e6),
    a_run("bf16", 0.1, 0.1, 1e6),
    a_run("topk", 0.025, 0.2, 5e4),
    a_run("sidco", 0.02, 0.2, 5e4),
)


def test_figures_of_one_run():
    run = SLOW_LINK[3]
    assert run.step == 0.02
    assert run.seconds == pytest.approx(2.0)
    assert run.compression == 40
    assert run.at_time(1.0, "loss") == pytest.approx(1.1)
    assert run.at_time(99.0, "accuracy") == 1.0
    assert run.seconds_to_loss(1.1) == pytest.approx(1.0)
    assert run.seconds_to_loss(0.19) is None
    assert run.seconds_to_loss(2.5) == 0.0


def test_equal_time_is_the_fastest_run_and_equal_loss_what_all_reached():
    (comparison,) = some_results(*SLOW_LINK).comparisons()
    assert comparison.equal_time == pytest.approx(2.0)
    assert comparison.equal_loss == pytest.approx(0.2)
    assert comparison.speed_up(SLOW_LINK[3], "none") == pytest.approx(10)
    assert comparison.speed_up(SLOW_LINK[3], "qsgd") is None
    # At equal time plain DDP has taken ten steps of a hundred.
    assert SLOW_LINK[0].at_time(comparison.equal_time, "accuracy") == pytest.approx(0.1)


def test_the_reading_says_when_compression_pays_and_by_how_much():
    lines = reading(some_results(*SLOW_LINK))
    assert lines[0] == (
        "digits, 100 Mbit/s: compression pays: sidco reaches loss 0.200 after 2.0 s, bf16 hook "
        "after 9.5 s; its steps are 5.0x as fast."
    )
    assert lines[-1] == "In every run, all ranks ended with bit-identical models."


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
    monkeypatch.setattr(picture, "save", lambda figure, *_, **options: figures.append(figure))
    monkeypatch.setattr(picture.plt, "close", lambda figure: None)
    runs = [
        a_run(method, 1e7 / rate * (at + 1), 1.0, 1e6, rate=rate)
        for rate in links
        for at, method in enumerate(methods)
    ]
    picture.draw(some_results(*runs), tmp_path / "demo.png")
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
