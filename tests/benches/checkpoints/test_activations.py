"""Training with packed activations, as the page about them has it."""

import pytest

from benches.checkpoints import activations


def test_a_model_is_measured_with_every_number_of_bits(monkeypatch):
    monkeypatch.setattr(activations, "ROUNDS", 2)
    monkeypatch.setattr(activations, "TIMED", 1)
    rows = activations.measure("residual network", seeds=1, steps=2)
    assert [each.bits for each in rows] == [None, 8, 4, 2]
    exact, *packed = rows
    assert exact.time == 1.0
    for each in packed:
        assert len(each.losses) == 1
        # All of this network is packed, but for its input, which the batch holds.
        assert exact.held - each.held == pytest.approx(each.saved - each.kept, rel=0.05)
    assert packed[1].share < 0.165
    assert activations.lines(rows)[-1].startswith("| residual network | 2 |")
