"""Mistakes that published code makes again and again, each as a test that it would fail.

Who made them is said so that a reader can look; every one was found in released research code.
The tenth, a GPU's work that is not waited for, is in tests/benches/test_timing.py.
"""

import pickle
import random

import numpy as np
import pytest

import gradwire
from gradwire.memory import NoMemory, Residual
from gradwire.presets import PRESETS
from gradwire.quantize import Codebook, SignScale, Ternary, TwoMeans, Uniform
from gradwire.sparsify import SID, All, BinMax, SampledTopK, TopK
from tests.presets.examples import gradient, made
from tests.support import memory_for


def rank_gradients(numel: int, ranks: int) -> list[np.ndarray]:
    """Gradients of several ranks, some with many more large entries than others."""
    return [gradient(numel, rank) ** (2 * rank + 1) for rank in range(ranks)]


def test_01_frames_of_unequal_length_are_not_cut_into_equal_slices():
    """SIDCo's reference divides what all ranks sent by the number of ranks."""
    codec = gradwire.threshold(0.25)
    gradients = rank_gradients(5000, 3)
    states = [codec.init_state(5000) for _ in gradients]
    frames = [codec.encode(x, state) for x, state in zip(gradients, states, strict=True)]
    assert len({frame.count for frame in frames}) == 3
    total = np.zeros(5000, np.float32)
    for frame in frames:
        gradwire.decode_add(frame, total)
    left = sum(state.residual.astype(np.float64) for state in states)
    given = sum(x.astype(np.float64) for x in gradients)
    np.testing.assert_allclose(total + left, given, rtol=0, atol=1e-6)


def test_02_entries_that_two_ranks_send_both_count():
    """`out[indices] += values` keeps one of the values of a repeated index."""
    codec = gradwire.topk(k=1, memory=NoMemory())
    x = np.array([0.0, 0.0, 3.0, 1.0], np.float32)
    total = np.zeros(4, np.float32)
    for factor in (1.0, 2.0, 4.0):
        gradwire.decode_add(codec.encode(x * np.float32(factor)), total)
    assert total.tolist() == [0.0, 0.0, 21.0, 0.0]


def test_03_what_is_too_much_is_left_out_by_magnitude_and_not_by_position():
    """DGC's code keeps the first k of the entries above its threshold: the last are never sent."""
    x = np.full(20_000, 1.0, np.float32)
    x[-40:] = np.arange(2, 42)  # the largest stand at the end
    sent = gradwire.Codec(sparsify=SampledTopK(0.002), memory=NoMemory())
    frame = sent.encode(x, sent.init_state(x.size, name="w"))
    assert frame.count <= 40
    assert frame.indices().min() >= x.size - 40
    trimmed = gradwire.threshold(0.5, memory=NoMemory()).encode(x, max_nbytes=400)
    assert set(range(x.size - 40, x.size)) <= set(trimmed.indices().tolist())


def test_04_a_threshold_of_zero_does_not_select_everything():
    """`>=` with a threshold of zero sends every entry, zeros too (DGC; AdaComp's empty bins)."""
    x = np.zeros(50_000, np.float32)
    x[[7, 30_000]] = [1.0, -2.0]
    for sparsify in (SampledTopK(0.01), BinMax(50), TopK(ratio=0.01), SID(0.01)):
        codec = gradwire.Codec(sparsify=sparsify, memory=NoMemory())
        frame = codec.encode(x, codec.init_state(x.size, name="w"))
        assert frame.indices().tolist() == [7, 30_000]
    nothing = gradwire.threshold(0.0, memory=NoMemory()).encode(x)
    assert nothing.indices().tolist() == [7, 30_000]


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
def test_05_the_callers_random_numbers_are_their_own(preset):
    """GRACE's random-k seeds torch's global generator in every call."""
    torch = pytest.importorskip("torch")

    def drawn_from() -> list[bytes]:
        shared = pickle.dumps(np.random.get_state())  # noqa: NPY002  # what old code draws from
        return [shared, torch.get_rng_state().numpy().tobytes(), repr(random.getstate()).encode()]

    before = drawn_from()
    codec = made(preset)
    codec.encode(gradient(48 * 64), codec.init_state(48 * 64, name="w"))
    assert drawn_from() == before


def test_06_the_learning_rate_is_no_part_of_the_residual():
    """GRACE's EF-sign sends the first step without the factor that all later ones have."""
    codec = gradwire.signsgd()
    x = np.where(gradient(4096) < 0, -0.125, 0.125).astype(np.float32)
    state = codec.init_state(x.size)
    for _ in range(3):
        # In units of the gradient from the first step on: nothing ever has to be rescaled.
        assert np.array_equal(gradwire.decode(codec.encode(x, state)), x)


def test_07_the_residual_is_written():
    """Accordion's top-k adds a memory that it never fills."""
    x = gradient(1000)
    low, high = gradwire.topk(0.01), gradwire.topk(0.1)
    state = low.init_state(1000)
    frame = low.encode(x, state)
    assert np.array_equal(state.residual, x - gradwire.decode(frame))
    assert state.residual.any()
    # And a schedule that changes the ratio does not empty it.
    before = state.residual
    frame = high.encode(np.zeros(1000, np.float32), state)
    assert frame.count == 100
    assert np.array_equal(state.residual, before - gradwire.decode(frame))


def test_08_every_column_has_means_of_its_own():
    """LBANN's 1-bit code samples the rows of the first column for all of them."""
    columns = np.arange(1, 9, dtype=np.float32)
    x = (np.where(np.arange(300) % 2, 1.0, -1.0)[None, :] * columns[:, None]).astype(np.float32)
    codec = gradwire.Codec(sparsify=All(), quantize=TwoMeans(300), memory=Residual())
    state = codec.init_state(x.size)
    frame = codec.encode(x, state)
    # Two values a column: with means of its own nothing is lost.
    assert np.array_equal(gradwire.decode(frame).reshape(x.shape), x)
    assert not state.residual.any()


def test_09_positions_beyond_2_to_the_24_are_exact():
    """Ok-Topk sends its indices through a float32 buffer."""
    numel = 2**24 + 4099
    x = np.zeros(numel, np.float32)
    positions = [2**24 - 1, 2**24 + 1, 2**24 + 3, numel - 1]
    x[positions] = [1.0, 2.0, 3.0, 4.0]
    for indices in ("elias-fano", "rice", "bitmap"):
        codec = gradwire.Codec(sparsify=TopK(k=4), memory=NoMemory(), indices=indices)
        assert codec.encode(x).indices().tolist() == positions


def test_11_tensors_do_not_share_a_controller():
    """SIDCo's stages are a class attribute: one controller for all tensors."""
    codec = gradwire.sidco(0.001, stages="paper", band=None)
    heavy, light = gradient(50_000) ** 5, np.sign(gradient(50_000))
    alone, beside, other = (codec.init_state(50_000) for _ in range(3))
    for _ in range(12):
        codec.encode(heavy, alone)
        codec.encode(light, other)
        codec.encode(heavy, beside)
    assert alone.state_dict()["scalars"] == beside.state_dict()["scalars"]
    assert alone.state_dict()["scalars"] != other.state_dict()["scalars"]


@pytest.mark.parametrize(
    ("quantize", "bits"),
    [
        (SignScale("mean"), 1),
        (TwoMeans(4096), 1),
        (Ternary(), 2),
        (Codebook(2), 2),
        (Uniform(2), 2),
        (Uniform(4), 4),
    ],
    ids=str,
)
def test_12_codes_of_few_bits_take_few_bits(quantize, bits):
    """Templar's codes of two bits are stored in a byte each."""
    numel = 1 << 17
    codec = gradwire.Codec(sparsify=All(), quantize=quantize, memory=memory_for(quantize))
    frame = codec.encode(gradient(4096).repeat(32), codec.init_state(numel, name="w"))
    tables = {"two_means": 8 * 32, "uniform": 4 * numel / 128, "codebook": 8 * 32}.get(
        quantize.kind, 16
    )
    assert frame.nbytes <= numel * bits / 8 + tables + 64


@pytest.mark.parametrize(
    "quantize",
    [SignScale("mean"), TwoMeans(50), Codebook(2), Uniform(3, 32), Uniform(4, 128)],
    ids=str,
)
def test_13_lengths_that_are_no_multiple_of_a_word_are_whole(quantize):
    """BytePS packs signs by 32 and reads past the end of other lengths."""
    codec = gradwire.Codec(sparsify=All(), quantize=quantize, memory=Residual())
    for numel in range(1, 140):
        x = gradient(numel) + np.float32(2.0)
        state = codec.init_state(numel, name="w")
        sent = gradwire.decode(codec.encode(x, state))
        assert np.array_equal(state.residual, x - sent)
        assert sent.size == numel


def test_14_what_a_rank_keeps_of_its_own_slice_is_counted_once():
    """LBANN's quantised reduction conserves 0.785 of a gradient summed over two ranks."""
    codec = gradwire.adaptive(proportion=8)
    codec = codec.for_shape((64, 64))
    states = [codec.init_state(4096, name="w", stream=rank) for rank in range(2)]
    given = arrived = np.zeros(4096)
    for step in range(40):
        for rank, state in enumerate(states):
            x = gradient(4096, 100 * rank + step) + np.float32(0.1)
            given = given + x
            arrived = arrived + gradwire.decode(codec.encode(x, state))
    left = sum(state.residual.astype(np.float64) for state in states)
    assert (arrived + left).sum() == pytest.approx(given.sum(), rel=1e-4)


def test_15_mean_over_ranks_or_over_senders_is_for_the_user_to_say():
    """DeMo and Templar divide by those that sent an entry, DGC and SIDCo by all ranks."""
    exchange = gradwire.exchange
    assert not gradwire.topk(0.01).exchange.means_senders
    assert exchange.AllGather() == exchange.AllGather(mean="ranks")
    assert exchange.AllGather(mean="senders") != exchange.AllGather()
    # What either comes to in training is in tests/distributed/test_exchanges.py.
