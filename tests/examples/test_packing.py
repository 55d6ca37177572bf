"""The examples of packed models run as they are, and print what their pages say."""

import re

import pytest

from tests.examples.runs import figures, run

pytestmark = pytest.mark.full  # trains


def test_a_packed_transformer_is_as_good_as_before_and_is_kept(tmp_path):
    said = run("pack_text.py", "--quick", folder=tmp_path)
    assert "training: step 60 of 60" in said
    said = run("pack_text.py", "--quick", folder=tmp_path)
    assert "training" not in said
    first, second = said.splitlines()
    assert first == "calibrated on 32 batches; 9 layers, 4.5 bits a weight with scales"
    pattern = (
        r"loss: float ([\d.]+)   nearest 4 bits ([\d.]+)   packed ([\d.]+)   accuracy [\d.]+ %"
    )
    found = re.fullmatch(pattern, second)
    assert found
    plain, nearest, packed = map(float, found.groups())
    assert plain < 3.0
    assert abs(packed - plain) < abs(nearest - plain) < 0.05


def test_adapters_on_packed_weights_come_near_full_fine_tuning():
    said = run("adapters.py")
    before, full, adapters = figures(said, ": (?=.*right)")
    assert min(before, full) > 96.0
    assert adapters > full - 3.0
    trained = figures(said.replace(",", ""), "right ")
    assert trained[2] < trained[1] / 5
