"""The parts of the command that train or time for themselves."""

import json

import numpy as np
import pytest

from benches.weights import activations, files, kernel


def silent(_: str) -> None:
    pass


@pytest.mark.parametrize("dtype", files.FORMATS)
def test_what_is_timed_gives_the_data_back(dtype):
    data = files.layers(1 << 20).view(np.uint8)
    compress, decompress = files.coders(dtype)["gradwire"]
    out = np.zeros_like(data)
    decompress(compress(data), out)
    np.testing.assert_array_equal(out, data)


@pytest.mark.full
def test_sizes_and_speeds_are_measured_and_shown(monkeypatch):
    monkeypatch.setattr(files, "EVERY", (1, 2))
    rows = files.sizes(8, silent)
    assert len(rows) == 2 * 2 * 5
    for row in rows:
        assert 0 < row["weights"] < 1.01
        assert (row["bound"] is None) == (row["every"] == 0)
    assert files.size_table(rows).count("\n") == 1 + len(rows)
    found = files.speeds(1 << 20, 1)
    assert {row["name"] for row in found} >= {"copy", "gradwire", "two threads"}
    assert files.speed_table(found).splitlines()[-1].count("×") == 2


def test_a_model_is_measured_with_every_number_of_bits(monkeypatch):
    monkeypatch.setattr(activations, "ROUNDS", 2)
    monkeypatch.setattr(activations, "TIMED", 1)
    rows = activations.rows("residual network", 1, 2, silent)
    assert [row["bits"] for row in rows] == [None, 8, 4, 2]
    exact, *packed = rows
    assert exact["time"] == 1.0
    for row in packed:
        assert len(row["losses"]) == 1
        # All of this network is packed, but for its input, which the batch holds.
        kept = row["saved"] - row["kept"]
        assert exact["held"] - row["held"] == pytest.approx(kept, rel=0.05)
    assert packed[1]["share"] < 0.165
    assert activations.table(rows).splitlines()[-1].startswith("| residual network | 2 |")


@pytest.mark.full
def test_all_times_are_taken_and_shown(monkeypatch):
    for name, value in {"WIDTH": 128, "LAYERS": 2, "ROUNDS": 1, "ROWS": (1, 64)}.items():
        monkeypatch.setattr(kernel, name, value)
    found = json.loads(json.dumps(kernel.measure(False, silent)))
    text = kernel.table(found)
    for name in (kernel.COPY, "torch, bfloat16", "packed, int8 x", 'pack, `"squares"`'):
        assert f"| {name}" in text
