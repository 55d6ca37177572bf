"""8-bit floats: every code against another implementation, blocks, and sums in float32."""

from typing import Literal

import ml_dtypes
import numpy as np
import pytest

import gradwire
from gradwire.memory import Residual
from gradwire.quantize import Float8
from gradwire.sparsify import All, TopK
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


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_every_code_comes_back(format, rounding):
    codes = np.array([c for c in range(256) if c & 0x7F <= LARGEST[format][0]], np.uint8)
    x = codes.view(PEERS[format]).astype(np.float32)
    for block in (None, 1, 7, 256):
        codec = gradwire.float8(format, rounding=rounding, block=block)
        for scale in (1.0, 2.0**-100, 2.0**100):
            y = gradwire.decode(codec.encode(x * np.float32(scale), codec.init_state(x.size)))
            if block is not None or scale == 1.0:
                np.testing.assert_array_equal(y, x * np.float32(scale))
                assert (np.signbit(y) == np.signbit(x)).all()


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


@pytest.mark.parametrize("sparsify", [All(), TopK(ratio=0.3)])
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_what_rounding_takes_off_stays_in_the_residual(format, rounding, sparsify):
    rng = np.random.default_rng(1)
    quantize = Float8(format, rounding=rounding, block=32)
    codec = gradwire.Codec(sparsify=sparsify, quantize=quantize, memory=Residual())
    state = codec.init_state(1000, name="layer")
    total, sent = np.zeros(1000), np.zeros(1000)
    for _ in range(20):
        x = rng.standard_normal(1000).astype(np.float32)
        total += x
        sent += gradwire.decode(codec.encode(x, state))
        # To the rounding of gradient and residual to one float32.
        np.testing.assert_allclose(sent + state.residual, total, rtol=0, atol=20 * 2.0**-22)


def test_stochastic_rounding_has_the_value_as_its_mean(format):
    rng = np.random.default_rng(2)
    x = rng.standard_normal(512).astype(np.float32)
    codec = gradwire.float8(format, rounding="stochastic", block=64)
    state = codec.init_state(x.size)
    draws = np.stack([gradwire.decode(codec.encode(x, state)) for _ in range(2000)])
    error = draws.mean(0, dtype=np.float64) - x
    standard_error = draws.std(0, dtype=np.float64) / np.sqrt(len(draws))
    assert (np.abs(error) <= 4.5 * standard_error + 1e-9).all()
    # All of them together, in standard errors of their mean.
    z = error.sum() / np.sqrt((standard_error**2).sum())
    assert abs(z) < 4


def test_sums_over_64_ranks_round_as_float32_does(format):
    """Accumulation never happens in 8 bits, where a long sum stops growing after a few terms."""
    rng = np.random.default_rng(3)
    codec = gradwire.float8(format)
    gradients = rng.standard_normal((64, 3000)).astype(np.float32) + np.float32(1.0)
    frames = [codec.encode(gradient) for gradient in gradients]
    total = np.zeros(3000, np.float32)
    for frame in frames:
        gradwire.decode_add(frame, total)
    decoded = np.stack([gradwire.decode(frame) for frame in frames]).astype(np.float64)
    # Each of 64 additions rounds once, to half a unit in the last place of a sum up to this.
    bound = 64 * 2.0**-24 * np.abs(decoded).sum(0)
    assert (np.abs(total - decoded.sum(0)) <= bound).all()
    # The same sum in codes stops short by far more.
    in_codes = np.zeros(3000, PEERS[format])
    for values in decoded:
        in_codes = (in_codes.astype(np.float32) + values.astype(np.float32)).astype(PEERS[format])
    lost = np.abs(in_codes.astype(np.float64) - decoded.sum(0))
    assert lost.mean() > 1000 * np.abs(total - decoded.sum(0)).mean()


def test_it_takes_eight_bits_an_entry(format):
    x = np.ones(4096, np.float32)
    assert len(gradwire.float8(format, block=None).encode(x)) == 48 + 4 + 4096
    assert len(gradwire.float8(format, block=256).encode(x)) == 48 + 4 + 4 * 16 + 4096


def test_infinite_and_nan_codes_are_refused(format):
    frame = bytes(gradwire.float8(format, block=None).encode(np.ones(3, np.float32)))
    for code in range(LARGEST[format][0] + 1, 0x80):
        for sign in (0, 0x80):
            with pytest.raises(gradwire.CorruptFrameError):
                gradwire.decode(forge(frame, len(frame) - 1, bytes([code | sign])))
