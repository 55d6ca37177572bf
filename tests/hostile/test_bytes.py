"""Bytes from outside: whatever they are, the answer is a typed error, in bounded memory."""

import itertools
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradwire
from gradwire.memory import NoMemory
from gradwire.sparsify import All, TopK
from tests.support import CODINGS, FITTED, QUANTIZERS, forge, memory_for, name_of, run_python

X = np.random.default_rng(3).standard_normal(200).astype(np.float32)


def frame_of(codec: gradwire.Codec) -> gradwire.Frame:
    return codec.encode(X, codec.init_state(X.size))


FRAMES = {
    **{
        f"{coding}-{name_of(quantize)}": frame_of(
            gradwire.Codec(
                sparsify=TopK(k=11),
                quantize=quantize,
                indices=coding,
                memory=memory_for(quantize),
            )
        )
        for coding in CODINGS
        for quantize in (*QUANTIZERS, *FITTED)
    },
    **{
        f"dense-{name_of(quantize)}": frame_of(
            gradwire.Codec(sparsify=All(), quantize=quantize, memory=memory_for(quantize))
        )
        for quantize in (*QUANTIZERS, *FITTED)
    },
}
EMPTY = bytes(gradwire.threshold(9.0, memory=NoMemory()).encode(X))
ERRORS = (gradwire.CorruptFrameError, gradwire.UnsupportedFrameError, gradwire.FrameTooLargeError)

frames = pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES.keys())


def with_numel(numel):
    """A frame without entries of a tensor of any length."""
    return forge(EMPTY, 16, struct.pack("<Q", numel))


def refused_everywhere(data, *errors):
    """Every entrance refuses these bytes, and outputs stay as they were."""
    out = np.full(X.size, 7, np.float32)
    for call in (
        lambda: gradwire.decode(data, out),
        lambda: gradwire.decode_add(data, out, 0.5),
        lambda: gradwire.decode(data),
    ):
        with pytest.raises(errors or ERRORS):
            call()
    assert (out == 7).all()


@frames
def test_every_prefix_is_truncated(frame):
    data = bytes(frame)
    for length in range(len(data)):
        with pytest.raises(gradwire.TruncatedFrameError) as caught:
            gradwire.Frame(data[:length])
        assert caught.value.have == length < caught.value.need
        refused_everywhere(data[:length], gradwire.TruncatedFrameError)


@frames
def test_every_flipped_bit_is_found(frame):
    data = bytes(frame)
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        refused_everywhere(bytes(flipped))


@frames
def test_what_follows_a_frame_is_not_ignored(frame):
    refused_everywhere(bytes(frame) + b"\0", gradwire.CorruptFrameError)


@pytest.mark.parametrize("data", [b"x", b"\x89PNG\r\n\x1a\n" + bytes(100), bytes(1000)])
def test_what_is_no_frame_at_all(data):
    refused_everywhere(data, gradwire.CorruptFrameError)


@frames
def test_forged_headers_with_a_right_checksum(frame):
    """Each byte of the header in turn; only what readers need not know may pass."""
    for at, value in itertools.product(range(48), (0, 1, 2, 7, 127, 128, 255)):
        data = forge(bytes(frame), at, bytes([value]))
        try:
            decoded = gradwire.decode(data, max_numel=X.size)
        except gradwire.GradwireError:
            continue
        assert decoded.size <= X.size, (at, value)


@pytest.mark.parametrize("numel", [2**28 + 1, 2**32 - 1, 2**40, 2**63, 2**64 - 1])
def test_claims_of_a_huge_tensor_are_refused(numel):
    """A frame of 48 bytes may not make its reader allocate gigabytes."""
    refused_everywhere(with_numel(numel))
    with pytest.raises(ERRORS):
        gradwire.Frame(with_numel(numel))


@frames
def test_claims_of_other_sizes_are_refused(frame):
    """In the header's fields `count`, `index_len` and `value_len`."""
    claims = (0, 1, 10, 12, 2**16, 2**32, 2**63, 2**64 - 1)
    for at, claim in itertools.product((24, 32, 40), claims):
        data = forge(bytes(frame), at, struct.pack("<Q", claim))
        if data != bytes(frame):
            refused_everywhere(data)


def test_memory_stays_in_proportion_to_what_is_allowed():
    """Peak memory of a fresh process that refuses hostile frames of every size class."""
    out = run_python(
        """
        import resource, sys
        import numpy as np
        import gradwire
        gradwire.decode(gradwire.dense().encode(np.ones(10, np.float32)))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for data in map(bytes.fromhex, sys.argv[1:]):
            for limit in (None, 1000):
                try:
                    gradwire.decode(data, max_numel=limit)
                except gradwire.GradwireError:
                    continue
                raise SystemExit("accepted")
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print((after - before) // (1024 if sys.platform == "darwin" else 1))
        """,
        *(with_numel(numel).hex() for numel in (2**28 + 1, 2**32 - 1)),
    )
    assert int(out) < 10_000, "kibibytes on top"


def test_the_limit_of_a_frame_is_its_own():
    """Whoever accepted a longer tensor once need not say so again."""
    frame = gradwire.Frame(with_numel(2**28 + 1), max_numel=2**29)
    assert frame.numel == 2**28 + 1
    assert frame.indices().size == 0


@given(st.sampled_from(sorted(FRAMES)), st.data())
def test_sections_of_random_bytes(name, data):
    """A right checksum over a forged body: decoded to some tensor, or a typed error."""
    frame = bytes(FRAMES[name])
    at = data.draw(st.integers(48, len(frame) - 1))
    body = data.draw(st.binary(min_size=1, max_size=len(frame) - at))
    try:
        out = gradwire.decode(forge(frame, at, body))
    except gradwire.CorruptFrameError:
        return
    assert out.shape == X.shape
    assert np.isfinite(out).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_corrupt(bad):
    data = forge(bytes(FRAMES["dense-quantize.Float32()"]), 48 + 4 * 9, np.float32(bad).tobytes())
    refused_everywhere(data, gradwire.CorruptFrameError)


def test_a_newer_version_is_not_called_corrupt():
    with pytest.raises(gradwire.UnsupportedFrameError) as caught:
        gradwire.Frame(forge(bytes(FRAMES["dense-quantize.Float32()"]), 3, b"\x02"))
    assert (caught.value.what, caught.value.found) == ("version", 2)
    assert "update gradwire" in str(caught.value)
