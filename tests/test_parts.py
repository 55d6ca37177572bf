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
from gradwire.quantize import QUANTIZERS, Float16, Quantizer
from gradwire.schedule import SCHEDULES, Schedule
from gradwire.sparsify import (
    SID,
    SPARSIFIERS,
    BinMax,
    Gaussian,
    SampledTopK,
    Sparsifier,
    Threshold,
    TopK,
    Trimmed,
    TwoSided,
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


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize("make", TAKE_A_RATIO, ids=lambda make: make.__name__)
def test_a_ratio_out_of_range_is_named(make, ratio):
    with pytest.raises(ValueError, match=r"^ratio must be .* at most 1, got"):
        make(ratio=ratio)


@pytest.mark.parametrize("value", [True, "0.1", None, [0.1], 1j])
def test_a_ratio_of_the_wrong_type_is_named(value):
    with pytest.raises(TypeError, match=r"^ratio must be a real number, got"):
        SID(value)


@pytest.mark.parametrize("number", [np.float32(0.5), np.float64(0.5), 0.5])
def test_numpy_numbers_are_numbers(number):
    assert TopK(ratio=number) == TopK(ratio=0.5)
    assert json.dumps(TopK(ratio=number).get_config())


@pytest.mark.parametrize(
    ("k", "error", "message"),
    [
        (0, ValueError, "k must be at least 1, got 0"),
        (-3, ValueError, "k must be at least 1, got -3"),
        (2**32, ValueError, "k must be at most 4294967295"),
        (1.0, TypeError, "k must be an integer, got 1.0"),
        (True, TypeError, "k must be an integer, got True"),
        ("7", TypeError, "k must be an integer, got '7'"),
    ],
)
def test_a_bad_count_is_named(k, error, message):
    with pytest.raises(error, match=message):
        TopK(k=k)


def test_top_k_takes_one_of_ratio_and_k():
    with pytest.raises(TypeError, match="either ratio= or k="):
        TopK()
    with pytest.raises(TypeError, match="either ratio= or k="):
        TopK(ratio=0.1, k=3)
    assert TopK(k=np.int64(3)) == TopK(k=3)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (-1, ValueError),
        (float("nan"), ValueError),
        (float("inf"), ValueError),
        (1e39, ValueError),
        ("1", TypeError),
        (False, TypeError),
    ],
)
def test_a_bad_threshold_is_named(value, error):
    with pytest.raises(error, match=r"^threshold must"):
        Threshold(value)


@pytest.mark.parametrize("decay", [0, 0.0, -1, 1.1, float("nan")])
def test_a_bad_decay_is_named(decay):
    with pytest.raises(ValueError, match=r"^decay must"):
        Residual(decay)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"distribution": "cauchy"}, ValueError, "distribution must be one of exponential, gamma"),
        ({"distribution": 3}, TypeError, "distribution must be a str"),
        ({"stages": "magic"}, ValueError, "stages must be one of adaptive, paper"),
        ({"stages": 0}, ValueError, "stages must be at least 1"),
        ({"stages": 1000}, ValueError, "stages must be at most 64"),
        ({"stages": 2.0}, TypeError, "stages must be an integer"),
        ({"stages": True}, TypeError, "stages must be an integer"),
        ({"band": (1.25, 0.8)}, ValueError, "band must be"),
        ({"band": (1.1, 1.2)}, ValueError, "band must be"),
        ({"band": (0.8, float("nan"))}, ValueError, "band.1. must be finite"),
        ({"band": (0.8,)}, TypeError, "band must be a pair"),
        ({"band": 0.8}, TypeError, "band must be a pair"),
        ({"first_ratio": 1.0}, ValueError, "first_ratio must be less than 1"),
        ({"first_ratio": 0}, ValueError, "first_ratio must be"),
    ],
)
def test_bad_options_of_sid_are_named(options, error, message):
    with pytest.raises(error, match=message):
        SID(0.01, **options)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: SampledTopK(0.01, sample_ratio=0), ValueError, "sample_ratio must be"),
        (lambda: SampledTopK(0.01, upper=1), ValueError, "upper must be greater than 1"),
        (lambda: SampledTopK(0.01, lower=1.0), ValueError, "lower must be less than 1"),
        (lambda: SampledTopK(0.01, strided=1), TypeError, "strided must be a bool"),  # type: ignore[arg-type]
        (lambda: SampledTopK(0.01, seed=-1), ValueError, "seed must be at least 0"),
        (lambda: BinMax(0), ValueError, "bin must be at least 1"),
        (lambda: BinMax(50.0), TypeError, "bin must be an integer"),  # type: ignore[arg-type]
        (lambda: BinMax(soft=0.9), ValueError, "soft must be at least 1"),
        (lambda: TwoSided(0.5), ValueError, "proportion must be at least 1"),
        (lambda: TwoSided(32, sample=0), ValueError, "sample must be at least 1"),
        (lambda: Gaussian(0.01, rounds=65), ValueError, "rounds must be at most 64"),
        (lambda: Gaussian(0.01, band=(1.2, 2)), ValueError, "band must be"),
        (lambda: Trimmed(0.01, method="guess"), ValueError, "method must be one of"),  # type: ignore[arg-type]
        (lambda: Trimmed(0.01, step=1), ValueError, "step must be less than 1"),
    ],
)
def test_bad_options_of_other_sparsifiers_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_bins_follow_the_kind_of_layer():
    assert BinMax().for_shape((64, 3, 3, 3)) == BinMax().for_shape((8, 4, 5)) == BinMax(50)
    assert BinMax(soft=3).for_shape((256, 512)) == BinMax(500, soft=3)
    assert BinMax(7).for_shape((64, 3, 3, 3)) == BinMax(7)


def test_scaled_is_a_bool():
    with pytest.raises(TypeError, match="scaled must be a bool, got 1"):
        Float16(scaled=1)


@pytest.mark.parametrize("value", [1, 0, None, "yes", np.True_])
def test_low_memory_is_a_bool(value):
    with pytest.raises(TypeError, match="low_memory must be a bool, got"):
        Residual(low_memory=value)


def test_a_configuration_from_before_low_memory_is_read():
    assert Residual.from_config({"kind": "residual", "decay": 0.5}) == Residual(decay=0.5)


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
