"""Frames of presets as floats and without loss, as the page about codecs has them."""

import pytest

from benches.checkpoints import frames


@pytest.fixture(scope="module")
def rows():
    return frames.measure(lambda _: None, quick=True)


def test_every_preset_with_frames_of_floats_is_there_and_gets_shorter(rows):
    assert {row.preset for row in rows} == {name for name, _ in frames.codecs()}
    assert {"adam", "topk", "dense"} <= {row.preset for row in rows}
    for row in rows:
        for law in frames.LAWS:
            assert row.lossless[law] < 0.9 * row.plain[law], row


def test_the_largest_hundredth_takes_what_is_promised(rows):
    (half,) = (row for row in rows if row.preset == "topk" and row.format == "bfloat16")
    (whole,) = (row for row in rows if row.preset == "topk" and row.format == "float32")
    assert max(half.lossless.values()) <= 17.2
    assert max(whole.lossless.values()) <= 33.3
    assert frames.table(rows).count("\n") == 1 + len(rows)
