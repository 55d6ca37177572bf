"""The parts of the command that train or time for themselves."""

import numpy as np
import pytest

from benches.weights import activations, files


def silent(_: str) -> None:
    pass


@pytest.mark.parametrize("dtype", files.FORMATS)
def test_what_is_timed_gives_the_data_back(dtype):
    data = files.layers(1 << 20).view(np.uint8)
    compress, decompress = files.coders(dtype)["gradwire"]
    out = np.zeros_like(data)
    decompress(compress(data), out)
    np.testing.assert_array_equal(out, data)


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
