"""Figures as scalars, read back by TensorBoard's own reader."""

import pytest

from gradwire.report import add_scalars
from tests.report.samples import hostile, saved


class Kept:
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.scalars: dict[str, tuple[float, int]] = {}

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        assert isinstance(value, float)
        self.scalars[tag] = (value, step)


def test_tensorboard_reads_what_was_written(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("tensorboard", reason="pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    report = saved()[0]
    with SummaryWriter(str(tmp_path)) as writer:
        report.to_tensorboard(writer)
        add_scalars(writer, {"wait_ms": 2.5}, 40)
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    waited = found.Scalars("gradwire/wait_ms")
    assert [each.step for each in waited] == [report.step, 40]
    assert [each.value for each in waited] == pytest.approx([report.wait_ms, 2.5])
    for each in report.parameters:
        (written,) = found.Scalars(f"gradwire.compression/{each.name}")
        assert written.value == pytest.approx(each.compression)


def test_every_figure_that_there_is_becomes_a_scalar():
    kept, report = Kept(), saved()[0]
    report.to_tensorboard(kept, 7, prefix="run")
    assert kept.scalars["run/compression"] == (report.compression, 7)
    assert {tag for tag in kept.scalars if tag.startswith("run/")} == {
        f"run/{name}"
        for name in (
            *("step", "steps", "collectives", "wire_bytes", "dense_wire_bytes", "compression"),
            *("slot_use", "achieved", "encode_ms", "exchange_ms", "decode_ms", "wait_ms"),
            *("residual_norm", "state_bytes", "node_wire_bytes", "node_ms"),
        )
    }
    dense = next(each for each in report.parameters if each.dense)
    assert f"run.bytes_per_step/{dense.name}" in kept.scalars
    assert f"run.residual_norm/{dense.name}" not in kept.scalars


def test_figures_of_parameters_may_be_left_out():
    kept = Kept()
    hostile().to_tensorboard(kept, parameters=False)
    assert all(tag.startswith("gradwire/") for tag in kept.scalars)


def test_wrong_arguments_are_told():
    with pytest.raises(TypeError, match=r"no add_scalar.* it is a dict; pass a .*SummaryWriter"):
        saved()[0].to_tensorboard({})
    with pytest.raises(TypeError, match=r"must be a Report or the dict .*, not a list"):
        add_scalars(Kept(), [1.0], 0)
