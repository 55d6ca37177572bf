"""The parts of the command that train or time for themselves."""

import numpy as np
import pytest

from benches.weights import files


@pytest.mark.parametrize("dtype", files.FORMATS)
def test_what_is_timed_gives_the_data_back(dtype):
    data = files.layers(1 << 20).view(np.uint8)
    compress, decompress = files.coders(dtype)["gradwire"]
    out = np.zeros_like(data)
    decompress(compress(data), out)
    np.testing.assert_array_equal(out, data)
