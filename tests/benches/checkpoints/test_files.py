"""`benches.checkpoints.files`: what it times comes back, and its page shows what was measured."""

import numpy as np
import pytest

from benches.checkpoints import files
from benches.harness import pages, results


@pytest.mark.parametrize("dtype", files.FORMATS)
def test_what_is_timed_gives_the_data_back(dtype):
    data = files.layers(1 << 20).view(np.uint8)
    ours, out = files.Ours(dtype), np.zeros_like(data)
    ours.decompress(ours.compress(data), out)
    np.testing.assert_array_equal(out, data)


def test_bfloat16_is_rounded_to_nearest_even():
    import ml_dtypes

    values = files.layers(1 << 20)
    expected = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(files.narrowed(values), expected)


def test_the_page_shows_what_was_measured():
    document = results.read(files.PUBLISHED)
    text = files.PAGE.read_text("utf-8")
    assert files.speed_table(document["speeds"]) in pages.find(text, "speeds")
    assert files.size_table(document["sizes"]) in pages.find(text, "sizes")
