"""The examples of training for few bits run as they are, and end where they say."""

import pytest

from tests.examples.runs import figures, run


@pytest.mark.full
def test_two_bits_come_near_float_and_are_packed_as_they_were_trained():
    said = run("two_bits.py")
    (floats,), (two,), (packed,) = (
        figures(said, f"{each}: ") for each in ("float", "2 bits", "packed")
    )
    assert two > floats - 2.0
    assert two > 96.0
    assert packed == two


@pytest.mark.full
def test_an_lstm_of_four_bits_comes_near_float_and_is_packed_as_it_was_trained():
    said = run("lstm_4bit.py", "40")
    floats, four, packed = figures(said, "loss ")
    assert four < floats + 0.15 < 3.2
    assert packed == pytest.approx(four, abs=1e-3)


@pytest.mark.full
def test_one_file_is_read_in_three_precisions():
    said = run("any_precision.py")
    here, alone = figures(said, r"bits: "), figures(said, "alone ")
    assert len(here) == 3
    assert all(one > other - 2.0 for one, other in zip(here, alone, strict=True))
