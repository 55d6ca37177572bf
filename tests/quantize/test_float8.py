"""8-bit floats: every code against another implementation, blocks, and sums in float32."""

from typing import Literal

import ml_dtypes
import numpy as np
import pytest

import gradwire
from tests.support import forge

Format = Literal["e4m3", "e5m2"]
PEERS = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
LARGEST = {"e4m3": (0x7E, 448.0), "e5m2": (0x7B, 57344.0)}

pytestmark = pytest.mark.parametrize("format", PEERS)


def codes_of(x: np.ndarray, format: Format) -> np.ndarray:
    """The codes of float32 values as they are, the last bytes of a frame without scales."""
    frame = bytes(gradwire.float8(format, block=None).encode(x))
    return np.frombuffer(frame, np.uint8, offset=len(frame) - x.size)


def expected_codes(x: np.ndarray, format: str) -> np.ndarray:
    """What ml_dtypes rounds to; where that is not finite, the largest code of the sign."""
    code, largest = LARGEST[format]
    with np.errstate(over="ignore"):
        rounded = x.astype(PEERS[format])
    codes = rounded.view(np.uint8).copy()
    past = (codes & 0x7F) > code
    assert (np.abs(x[past]) > largest).all(), "only what is too large has no finite code"
    codes[past] = code | (np.signbit(x[past]).astype(np.uint8) << 7)
    return codes


def test_samples_of_all_float32_round_as_ml_dtypes_does(format):
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 2_000_000, dtype=np.uint64).astype(np.uint32)
    # Half of them near the values where rounding decides: few bits of mantissa, one more or less.
    coarse = bits[1_000_000:] & np.uint32(0xFFF80000)
    bits[1_000_000:] = coarse + rng.integers(-1, 2, coarse.size).astype(np.uint32)
    x = bits.view(np.float32)
    x = x[np.isfinite(x)]
    assert x.size > 1_900_000
    np.testing.assert_array_equal(codes_of(x, format), expected_codes(x, format))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_float32_round_as_ml_dtypes_does(format):
    """2^32 values: some minutes. Run by ``pytest -m slow tests/quantize/test_float8.py``."""
    step, seen = 1 << 24, 0
    for first in range(0, 1 << 32, step):
        x = np.arange(first, first + step, dtype=np.uint32).view(np.float32)
        if first >> 24 & 0x7F == 0x7F:
            x = x[np.isfinite(x)]
        seen += x.size
        if x.size:
            assert (codes_of(x, format) == expected_codes(x, format)).all(), hex(first)
    assert seen == 2**32 - 2**24, "all but infinities and NaNs"


def test_the_scale_of_a_block_is_a_power_of_two_that_just_fits(format):
    largest = LARGEST[format][1]
    codec = gradwire.float8(format, block=4)
    for peak, scale in [(largest, 1.0), (np.nextafter(np.float32(largest), np.inf), 2.0)]:
        x = np.array([peak, 0.0, -1.0, 0.0] + [0.0] * 4, np.float32)
        section = bytes(codec.encode(x))[48:]
        assert section[:4] == (4).to_bytes(4, "little")
        np.testing.assert_array_equal(np.frombuffer(section[4:12], "<f4"), [scale, 0.0])


def test_blocks_of_zeros_and_of_subnormals_and_of_the_largest(format):
    tiny = np.float32(2.0**-149)
    top = np.finfo(np.float32).max
    saturated = np.float32(1.75 * 2.0**127)
    x = np.zeros(16, np.float32)
    x[4:8] = [tiny, -tiny, 3 * tiny, 0]
    x[8:12] = [top, -top, saturated, 0]
    y = gradwire.decode(gradwire.float8(format, block=4).encode(x))
    np.testing.assert_array_equal(y[:8], x[:8])
    np.testing.assert_array_equal(y[8:12], [saturated, -saturated, saturated, 0])


def test_infinite_and_nan_codes_are_refused(format):
    frame = bytes(gradwire.float8(format, block=None).encode(np.ones(3, np.float32)))
    for code in range(LARGEST[format][0] + 1, 0x80):
        for sign in (0, 0x80):
            with pytest.raises(gradwire.CorruptFrameError):
                gradwire.decode(forge(frame, len(frame) - 1, bytes([code | sign])))
