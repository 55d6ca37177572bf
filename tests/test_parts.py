"""Parts of a codec: validation, configuration, repr, equality."""

import copy
import inspect
import json
import pickle
import re
from typing import Any

import numpy as np
import pytest

import gradwire
from gradwire.exchange import EXCHANGES, Exchange
from gradwire.memory import MEMORIES, Memory, Residual
from gradwire.presets import PRESETS
from gradwire.quantize import QUANTIZERS, Quantizer
from gradwire.schedule import SCHEDULES, Schedule
from gradwire.sparsify import (
    SID,
    SPARSIFIERS,
    BinMax,
    Sparsifier,
    TopK,
)
from tests.examples_of_parts import EXAMPLES
from tests.support import examples, name_of

SORTS: dict[type[Any], tuple[type[Any], ...]] = {
    Sparsifier: SPARSIFIERS,
    Quantizer: QUANTIZERS,
    Memory: MEMORIES,
    Exchange: EXCHANGES,
    Schedule: SCHEDULES,
}
PARTS = [part for classes in SORTS.values() for part in examples(classes)]


@pytest.mark.parametrize("part", PARTS, ids=name_of)
class TestEveryPart:
    def test_repr_evaluates_back(self, part):
        assert eval(repr(part), {"gradwire": gradwire}) == part

    def test_config_goes_through_json_and_back(self, part):
        config = json.loads(json.dumps(part.get_config()))
        assert type(part).from_config(config) == part

    def test_equal_parts_hash_alike(self, part):
        same = type(part).from_config(part.get_config())
        assert hash(same) == hash(part)
        assert sum(other == part for other in PARTS) == 1

    def test_is_frozen(self, part):
        with pytest.raises(AttributeError):
            part.ratio = 0.5

    def test_copies_are_equal(self, part):
        assert pickle.loads(pickle.dumps(part)) == copy.deepcopy(part) == part

    def test_unknown_options_are_refused(self, part):
        with pytest.raises(ValueError, match="no option colour"):
            type(part).from_config(part.get_config() | {"colour": "red"})

    def test_another_kind_is_refused(self, part):
        with pytest.raises(ValueError, match="has kind"):
            type(part).from_config(part.get_config() | {"kind": "other"})


RATIOS = [0, 0.0, -0.1, 1.0000001, 2, float("nan"), float("inf")]

_MAKERS: list[Any] = [*SPARSIFIERS, *(preset.build for preset in PRESETS.values())]
TAKE_A_RATIO = [make for make in _MAKERS if "ratio" in inspect.signature(make).parameters]


@pytest.mark.parametrize("make", TAKE_A_RATIO, ids=lambda make: make.__name__)
def test_a_ratio_out_of_range_is_named(make):
    for ratio in RATIOS:
        with pytest.raises(ValueError, match=r"^ratio must be .* at most 1, got"):
            make(ratio=ratio)


def test_numbers_of_numpy_are_numbers():
    for number in (np.float32(0.5), np.float64(0.5), 0.5):
        assert TopK(ratio=number) == TopK(ratio=0.5)
        assert json.dumps(TopK(ratio=number).get_config())
    assert TopK(k=np.int64(3)) == TopK(k=3)


NOT_VALUES = [
    ("TopK(k=0)", "k must be at least 1, got 0"),
    ("TopK(k=2**32)", "k must be at most 4294967295"),
    ("RandomK(k=0)", "k must be at least 1"),
    ("RandomK(ratio=1.5)", "ratio must be"),
    ("RandomK(k=1, seed=-1)", "seed must be at least 0"),
    ("RandomK(k=1, seed=2**64)", "seed must be at most"),
    ("ChunkTopK(0)", "chunk must be at least 1"),
    ("ChunkTopK(2**31 + 1)", "chunk must be at most 2147483648"),
    ("ChunkTopK(10, k=0)", "k must be at least 1"),
    ("ChunkTopK(10, tile=(8, 0))", r"tile\[1\] must be at least 1"),
    ("ChunkTopK(10, columns=3)", "columns needs a tile"),
    ("Threshold(-1)", "^threshold must"),
    ("Threshold(nan)", "^threshold must"),
    ("Threshold(1e39)", "^threshold must"),
    ("SID(0.01, distribution='cauchy')", "distribution must be one of exponential, gamma"),
    ("SID(0.01, stages='magic')", "stages must be one of adaptive, paper"),
    ("SID(0.01, stages=0)", "stages must be at least 1"),
    ("SID(0.01, stages=1000)", "stages must be at most 64"),
    ("SID(0.01, band=(1.25, 0.8))", "band must be"),
    ("SID(0.01, band=(1.1, 1.2))", "band must be"),
    ("SID(0.01, band=(0.8, nan))", "band.1. must be finite"),
    ("SID(0.01, first_ratio=1.0)", "first_ratio must be less than 1"),
    ("SID(0.01, first_ratio=0)", "first_ratio must be"),
    ("SampledTopK(0.01, sample_ratio=0)", "sample_ratio must be"),
    ("SampledTopK(0.01, upper=1)", "upper must be greater than 1"),
    ("SampledTopK(0.01, lower=1.0)", "lower must be less than 1"),
    ("SampledTopK(0.01, seed=-1)", "seed must be at least 0"),
    ("BinMax(0)", "bin must be at least 1"),
    ("BinMax(soft=0.9)", "soft must be at least 1"),
    ("TwoSided(0.5)", "proportion must be at least 1"),
    ("TwoSided(32, sample=0)", "sample must be at least 1"),
    ("Gaussian(0.01, rounds=65)", "rounds must be at most 64"),
    ("Gaussian(0.01, band=(1.2, 2))", "band must be"),
    ("Trimmed(0.01, method='guess')", "method must be one of"),
    ("Trimmed(0.01, step=1)", "step must be less than 1"),
    ("Float8('e3m4')", "format"),
    ("Float8(rounding='up')", "rounding"),
    ("Float8(block=0)", "block"),
    ("Float8(block=2**32)", "block"),
    ("Exponent(seed=2**64)", "seed"),
    ("Lossless('float8')", "format"),
    ("Uniform(bits=1)", "bits must be"),
    ("Uniform(bits=9)", "bits must be"),
    ("Uniform(block=0)", "block must be"),
    ("Uniform(norm='l1')", "norm must be"),
    ("SignScale('median')", "scale must be"),
    ("TwoMeans(column=0)", "column must be"),
    ("Ternary(clip=0.0)", "clip must be"),
    ("Ternary(clip=inf)", "clip must be"),
    ("Codebook(0)", "bits must be"),
    ("Codebook(5)", "bits must be"),
    ("Affine(bits=0)", "bits"),
    ("Affine(bits=9)", "bits"),
    ("Affine(block=0)", "block"),
    ("Affine(fit='best')", "squares"),
    ("Affine(fit='zero', bits=1)", "at least 2 bits"),
    ("Affine(rounding='up')", "stochastic"),
    ("Affine(rounding='stochastic')", 'fit="range"'),
    ("Affine(seed=-1)", "seed"),
    ("Residual(0)", "^decay must"),
    ("Residual(1.1)", "^decay must"),
    ("Residual(nan)", "^decay must"),
    ("LowPass(seed=-1)", "seed must be at least 0"),
    ("LowPass(0)", "beta"),
    ("LowPass(1.5)", "beta"),
    ("LowPass(nan)", "beta"),
    ("MomentumCorrection(momentum=1.0)", "momentum"),
    ("MomentumCorrection(clip=0.0)", "clip"),
    ("MomentumCorrection(clip=inf)", "clip"),
    ("AdamCorrection(beta2=1.0)", "beta2"),
    ("AdamCorrection(eps=1e-39)", "eps"),
    ("AdamCorrection(eps=inf)", "eps"),
    ("Accordion(0.01, 0.1)", "low must be at least high"),
    ("Accordion(1.5, 0.01)", "low must be greater than 0 and at most 1"),
    ("Accordion(0.1, 0.01, eta=0.0)", "eta must be greater than 0"),
    ("Accordion(0.1, 0.01, eta=nan)", "eta must be finite"),
    ("Accordion(0.1, 0.01, interval=0)", "interval must be at least 1"),
    ("WarmUp((0.5, 0.0))", r"ratios\[1\] must be greater than 0"),
    ("WarmUp.code(2.0, 5)", "ratio must be"),
    ("WarmUp.code(0.1, -1)", "epochs must be at least 0"),
    ("DenseWarmUp(-1)", "epochs must be at least 0"),
    ("BySteps(Accordion(0.5, 0.1), 3)", "depends on more than the epoch"),
    ("BySteps(BySteps(WarmUp(), 2), 3)", "cannot advance by steps"),
    ("BySteps(WarmUp(), 0)", "steps"),
]
NOT_TYPES = [
    ("TopK()", "either ratio= or k="),
    ("TopK(ratio=0.1, k=3)", "either ratio= or k="),
    ("TopK(k=1.0)", "k must be an integer, got 1.0"),
    ("TopK(k=True)", "k must be an integer, got True"),
    ("SID('0.1')", "^ratio must be a real number, got"),
    ("SID(True)", "^ratio must be a real number, got"),
    ("SID(0.01, distribution=3)", "distribution must be a str"),
    ("SID(0.01, stages=2.0)", "stages must be an integer"),
    ("SID(0.01, stages=True)", "stages must be an integer"),
    ("SID(0.01, band=(0.8,))", "band must be a pair"),
    ("SID(0.01, band=0.8)", "band must be a pair"),
    ("RandomK()", "either ratio= or k="),
    ("RandomK(k=1, block=1)", "block must be a bool"),
    ("RandomK(k=1, scaled='no')", "scaled must be a bool"),
    ("ChunkTopK(1.5)", "chunk must be an integer"),
    ("ChunkTopK(10, tile=8)", "tile must be a pair"),
    ("Threshold('1')", "^threshold must"),
    ("Threshold(False)", "^threshold must"),
    ("SampledTopK(0.01, strided=1)", "strided must be a bool"),
    ("BinMax(50.0)", "bin must be an integer"),
    ("Float16(scaled=1)", "scaled must be a bool, got 1"),
    ("Float8(block=256.0)", "block"),
    ("Exponent(seed='1')", "seed"),
    ("Lossless(16)", "format"),
    ("Codebook(2.0)", "bits must be"),
    ("Affine(bits=True)", "bits"),
    ("Affine(block=64.0)", "block"),
    ("LowPass(seed=0.5)", "seed must be an integer"),
    ("Accordion(0.1, '0.1')", "high must be a real number"),
    ("Accordion(0.1, 0.01, interval=2.0)", "interval must be an integer"),
    ("WarmUp('high')", "must be a real number"),
    ("DenseWarmUp(True)", "epochs must be an integer"),
    ("BySteps('warm-up', 3)", "must be a schedule"),
]
SPACE: dict[str, Any] = {"nan": float("nan"), "inf": float("inf")}
SPACE |= {cls.__name__: cls for classes in SORTS.values() for cls in classes}


@pytest.mark.parametrize(
    ("error", "rows"), [(ValueError, NOT_VALUES), (TypeError, NOT_TYPES)], ids=["value", "type"]
)
def test_options_that_mean_nothing_are_named(error, rows):
    for call, message in rows:
        with pytest.raises(error, match=message):
            print(call, eval(call, dict(SPACE)))  # shown if it is taken


def test_bins_follow_the_kind_of_layer():
    assert BinMax().for_shape((64, 3, 3, 3)) == BinMax().for_shape((8, 4, 5)) == BinMax(50)
    assert BinMax(soft=3).for_shape((256, 512)) == BinMax(500, soft=3)
    assert BinMax(7).for_shape((64, 3, 3, 3)) == BinMax(7)


@pytest.mark.parametrize("value", [1, 0, None, "yes", np.True_])
def test_low_memory_is_a_bool(value):
    with pytest.raises(TypeError, match="low_memory must be a bool, got"):
        Residual(low_memory=value)


def test_reprs_leave_out_what_is_at_its_default():
    assert repr(SID(0.01)) == "gradwire.sparsify.SID(ratio=0.01)"
    assert repr(SID(0.01, stages=3)) == "gradwire.sparsify.SID(ratio=0.01, stages=3)"
    assert repr(Residual()) == "gradwire.memory.Residual()"


@pytest.mark.parametrize("sort", SORTS, ids=lambda sort: sort.__name__)
class TestSorts:
    def test_a_part_that_leaves_something_open_cannot_be_defined(self, sort):
        missing = ", ".join(sort._STATED)
        with pytest.raises(TypeError, match=f"^Open must set {missing}$"):
            type("Open", (sort,), {"kind": "open"})
        assert "open" not in sort.KINDS

    def test_a_kind_has_one_class(self, sort):
        stated = dict.fromkeys(sort._STATED)
        kind = next(iter(sort.KINDS))
        with pytest.raises(TypeError, match=rf"Twin\.kind is '{kind}', as of "):
            type("Twin", (sort,), {"kind": kind, **stated})

    def test_every_part_has_examples(self, sort):
        with_examples = {type(each) for each in EXAMPLES if isinstance(each, sort)}
        assert with_examples == set(SORTS[sort])


def test_signatures_name_the_sort_of_part_and_not_every_class():
    for preset in PRESETS.values():
        shown = str(inspect.signature(preset.build))
        assert len(shown) < 600, shown
        assert not re.search(r"gradwire\.(quantize|memory|sparsify|exchange)\.[\w.]+ \|", shown)
    assert len(str(inspect.signature(gradwire.Codec))) < 600
