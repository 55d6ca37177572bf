"""The report: text, JSON, and scalars that TensorBoard's own reader reads."""

import json

import pytest

from gradwire.report import ParameterReport, Report, add_scalars

PARAMETERS = tuple(
    ParameterReport(
        name=f"layers.{at}.weight",
        numel=1000 * at + 500,
        dense=at == 0,
        steps=20,
        bytes_per_step=100.0 * at + 50.0,
        compression=40.0 if at else 1.0,
        achieved=1.0 if at else None,
        trimmed=0,
        encode_ms=0.1,
        decode_ms=0.2,
        residual_norm=0.25 if at else None,
        state_bytes=4000 * at,
    )
    for at in range(25)
)
REPORT = Report(
    rank=0,
    world_size=2,
    codec="gradwire.adam(ratio=0.01)",
    carried_by="gloo",
    step=30,
    steps=20,
    collectives=40,
    wire_bytes=12_345.0,
    dense_wire_bytes=1_234_500.0,
    compression=100.0,
    slot_use=0.9,
    achieved=None,
    encode_ms=1.0,
    exchange_ms=2.0,
    decode_ms=3.0,
    wait_ms=2.5,
    residual_norm=5.0,
    state_bytes=1_200_000,
    parameters=PARAMETERS,
)


class Kept:
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.scalars: dict[str, tuple[float, int]] = {}

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        assert isinstance(value, float)
        self.scalars[tag] = (value, step)


def test_the_text_has_a_summary_and_the_largest_parameters():
    lines = str(REPORT).splitlines()
    assert lines[0] == "gradwire, rank 0 of 2: 20 steps"
    assert "  bytes sent      12.35 kB per step, 100.0x less than plain DDP (1.234 MB)" in lines
    assert "  achieved        - (entries sent / requested)" in lines
    assert not any(line.startswith(("  schedule", "  inside the node")) for line in lines)
    rows = [line for line in lines if line.startswith("layers.")]
    assert [row.split()[0] for row in rows] == [f"layers.{at}.weight" for at in range(24, 4, -1)]
    assert lines[-1] == "... and 5 smaller ones: see to_json()"


def test_json_has_every_figure():
    found = json.loads(REPORT.to_json())
    assert found["compression"] == 100.0
    assert found["parameters"][3]["name"] == "layers.3.weight"


def test_tensorboard_reads_what_was_written(tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("tensorboard", reason="pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        REPORT.to_tensorboard(writer)
        add_scalars(writer, {"wait_ms": 7.5}, 40)
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    waited = found.Scalars("gradwire/wait_ms")
    assert [(each.step, each.value) for each in waited] == [(30, 2.5), (40, 7.5)]
    (written,) = found.Scalars("gradwire.compression/layers.1.weight")
    assert written.value == 40.0


def test_every_figure_that_there_is_becomes_a_scalar():
    kept = Kept()
    REPORT.to_tensorboard(kept, 7, prefix="run")
    assert kept.scalars["run/compression"] == (100.0, 7)
    assert {"run/rank", "run/world_size", "run/achieved"}.isdisjoint(kept.scalars)
    assert kept.scalars["run.bytes_per_step/layers.0.weight"] == (50.0, 7)
    assert "run.residual_norm/layers.0.weight" not in kept.scalars
    without = Kept()
    REPORT.to_tensorboard(without, parameters=False)
    assert without.scalars.keys() == {
        tag.replace("run/", "gradwire/") for tag in kept.scalars if tag.startswith("run/")
    }
