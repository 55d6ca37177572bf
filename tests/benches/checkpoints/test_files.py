"""`benches.checkpoints.files`: what it times comes back."""

import numpy as np
import pytest

from benches.checkpoints import files


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
