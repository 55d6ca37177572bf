"""That what a quantizer does not say stays bounded in every memory that feeds it back."""

import functools
import warnings
from collections.abc import Iterator

import numpy as np
import pytest

import gradwire
from gradwire import memory, quantize
from gradwire.memory import NoMemory, Residual
from gradwire.quantize import Quantizer, SignScale, Ternary, TwoMeans, Uniform
from gradwire.sparsify import All, TopK
from tests.outside_parts import Halves
from tests.support import examples, name_of

NUMEL, ENCODES = 512, 2000
SPARSIFIERS = (All(), TopK(ratio=0.25))
MEMORIES = [each for each in examples(memory.MEMORIES) if each.keeps]

# Both sides of each bound of the only quantizer whose options decide.
CONTRACTING = [Uniform(2, 3), Uniform(3, 35), Uniform(4, 195), Uniform(8, 512)]
CONTRACTING += [Uniform(2, 8, "max"), Uniform(3, 512, "max"), Uniform(4, 1 << 20, "max")]
REFUSED: list[Quantizer] = [
    Uniform(),
    Uniform(2, 4),
    Uniform(3, 36),
    Uniform(4, 196),
    Uniform(7, 15_876),
]
REFUSED += [Uniform(2, 9, "max"), Uniform(2, norm="max"), Ternary(), Ternary(clip=None)]

QUANTIZERS = [each for each in examples(quantize.QUANTIZERS) if each.contracts]
QUANTIZERS += [*CONTRACTING, TwoMeans(64), SignScale("rms")]
"""Every quantizer, with a few of its options, that a memory can follow."""


def codecs(quantizer: Quantizer) -> Iterator[gradwire.Codec]:
    """Every composition of a quantizer with a memory that feeds back."""
    for sparsify in SPARSIFIERS:
        for kept in MEMORIES:
            if sparsify != All() or not getattr(kept, "masking", False):
                codec = gradwire.Codec(sparsify=sparsify, quantize=quantizer, memory=kept)
                yield codec.for_shape((NUMEL,))


def residuals(codec: gradwire.Codec) -> np.ndarray:
    """The norms of what is kept, after every hundredth encode."""
    gradients = np.random.default_rng(3).standard_normal((ENCODES, NUMEL)).astype(np.float32)
    state, norms = codec.init_state(NUMEL), []
    for step, x in enumerate(gradients):
        codec.encode(x, state)
        if step % 100 == 99:
            norms.append(np.linalg.norm(np.asarray(state.residual, np.float64)))
    return np.array(norms)


@functools.cache
def exact(kept: memory.Memory) -> float:
    """What a memory keeps of a selection whose values are sent as they are."""
    codec = gradwire.Codec(sparsify=SPARSIFIERS[1], memory=kept)
    return float(residuals(codec)[15:].mean())


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=name_of)
def test_a_residual_stays_bounded_over_2000_encodes_of_fresh_gradients(
    quantizer: Quantizer,
) -> None:
    for codec in codecs(quantizer):
        norms = residuals(codec)
        assert norms[15:].mean() < 1.5 * norms[5:10].mean() + 1e-3, codec
        # Of the size of what is left of a selection of exact values.
        assert norms[15:].mean() < 20 * exact(codec.memory), codec


@pytest.mark.parametrize("quantizer", REFUSED, ids=name_of)
def test_a_quantizer_whose_error_would_grow_in_a_memory_is_refused(quantizer: Quantizer) -> None:
    assert not quantizer.contracts
    for sparsify in SPARSIFIERS:
        for kept in MEMORIES:
            if sparsify != All() or not getattr(kept, "masking", False):
                with pytest.raises(ValueError, match=r"memory=gradwire\.memory\.NoMemory\(\)"):
                    gradwire.Codec(sparsify=sparsify, quantize=quantizer, memory=kept)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            gradwire.Codec(sparsify=sparsify, quantize=quantizer, memory=NoMemory())


@pytest.mark.parametrize("quantizer", REFUSED, ids=name_of)
def test_the_quantizer_that_the_refusal_names_is_taken(quantizer: Quantizer) -> None:
    with pytest.raises(ValueError, match="would grow") as caught:
        gradwire.topk(0.01, quantize=quantizer)
    named = str(caught.value).split("use ")[1].split(", or memory=")[0]
    gradwire.topk(0.01, quantize=eval(named, {"Uniform": Uniform}))


def test_a_quantizer_of_another_package_can_say_that_it_does_not_contract() -> None:
    class Coarse(Halves):
        contracts = False

    with pytest.raises(ValueError, match="use another quantizer"):
        gradwire.topk(0.01, quantize=Coarse())
    gradwire.Codec(sparsify=All(), quantize=Coarse(), memory=NoMemory())


def test_presets_say_what_to_write_where_they_are_given_a_memory() -> None:
    for preset in (gradwire.qsgd, gradwire.terngrad):
        preset()
        with pytest.raises(ValueError, match=r'use Uniform\(., .*norm="max"\)'):
            preset(memory=Residual())
    gradwire.qsgd(norm="max", memory=Residual())
