"""Parts of a codec: validation, configuration, repr, equality."""

import copy
import dataclasses
import functools
import inspect
import json
import math
import pickle
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gradwire
from gradwire import _validate
from gradwire._part import option_names
from gradwire._validate import _checks
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


NAN = float("nan")
SHARES = (_validate.unit_interval, _validate.ratio)
CHECKED_TOGETHER = {"Accordion": {"low", "high"}, "WarmUp": {"ratios"}, "BySteps": {"schedule"}}
"""Options whose types do not say what they must be: their part does."""


def beyond(check: Any) -> Iterator[tuple[Any, type[Exception]]]:
    """Values that an option with this check must not have, by what is read from its type."""
    of_another_type: tuple[Any, ...] = (b"1", {})
    yield from ((value, TypeError) for value in of_another_type)
    if isinstance(check, functools.partial):
        yield "colour", ValueError
    elif check is _validate.boolean:
        yield from ((value, TypeError) for value in (1, "yes", np.True_))
    elif check._check is _validate.integer:
        yield from ((value, TypeError) for value in (1.5, True, "1"))
        yield from ((value, ValueError) for value in (check._bounds["low"] - 1, 10**400))
        yield check._bounds.get("high", 2**63 - 1) + 1, ValueError
    elif check._check in (_validate.positive, *SHARES):
        yield from ((value, TypeError) for value in (True, "1"))
        yield from ((value, ValueError) for value in (NAN, math.inf, -0.1, 10**400))
        bounds = check._bounds
        yield from ((bounds[name], ValueError) for name in ("above", "below") if name in bounds)
        if "low" in bounds:
            yield bounds["low"] - 0.1, ValueError
        if check._check is not _validate.positive:
            yield 0.0, ValueError
        if check._check in SHARES:
            yield 1.0000001, ValueError


@pytest.mark.parametrize("part", PARTS, ids=name_of)
def test_an_option_out_of_what_its_type_says_is_named(part):
    names, checks = option_names(type(part)), _checks(type(part))
    assert {*names} - checks.keys() == CHECKED_TOGETHER.get(type(part).__name__, set())
    either = {"k", "ratio"} <= {*names}  # of which the other one must be None
    for name, (check, _) in checks.items():
        others = dict.fromkeys({"k", "ratio"} - {name}) if either and name in ("k", "ratio") else {}
        for value, error in beyond(check):
            with pytest.raises(error, match=rf"^{name}\b.* (must|may) "):
                print(dataclasses.replace(part, **others, **{name: value}))


RATIOS = [0, 0.0, -0.1, 1.0000001, 2, NAN, math.inf]
TAKE_A_RATIO = [
    each.build for each in PRESETS.values() if "ratio" in inspect.signature(each.build).parameters
]


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
    ("ChunkTopK(10, tile=(8, 0))", r"tile\[1\] must be at least 1"),
    ("ChunkTopK(10, columns=3)", "columns needs a tile"),
    ("Threshold(1e39)", "^threshold must"),
    ("SID(0.01, stages='magic')", "stages must be one of adaptive, paper"),
    ("SID(0.01, stages=0)", "stages must be at least 1"),
    ("SID(0.01, stages=1000)", "stages must be at most 64"),
    ("SID(0.01, band=(1.25, 0.8))", "band must be"),
    ("SID(0.01, band=(1.1, 1.2))", "band must be"),
    ("SID(0.01, band=(0.8, nan))", "band.1. must be finite"),
    ("SID(0.01, stages=10**400)", "stages must be at most 64"),
    ("SID(0.01, band=(0, 10**400))", "must fit in a float64"),
    ("ChunkTopK(10, tile=(10**400, 1))", r"tile\[0\] must be at most"),
    ("Affine(fit='zero', bits=1)", "at least 2 bits"),
    ("Affine(rounding='stochastic')", 'fit="range"'),
    ("AdamCorrection(eps=1e-39)", "eps"),
    ("AdamCorrection(eps=inf)", "eps"),
    ("Accordion(0.01, 0.1)", "low must be at least high"),
    ("Accordion(1.5, 0.01)", "low must be greater than 0 and at most 1"),
    ("WarmUp((0.5, 0.0))", r"ratios\[1\] must be greater than 0"),
    ("WarmUp.code(2.0, 5)", "ratio must be"),
    ("WarmUp.code(0.1, -1)", "epochs must be at least 0"),
    ("BySteps(Accordion(0.5, 0.1), 3)", "depends on more than the epoch"),
    ("BySteps(BySteps(WarmUp(), 2), 3)", "cannot advance by steps"),
]
NOT_TYPES = [
    ("TopK()", "either ratio= or k="),
    ("TopK(ratio=0.1, k=3)", "either ratio= or k="),
    ("RandomK()", "either ratio= or k="),
    ("SID(0.01, stages=2.0)", "stages must be an integer"),
    ("SID(0.01, stages=True)", "stages must be an integer"),
    ("SID(0.01, band=(0.8,))", "band must be a pair"),
    ("SID(0.01, band=0.8)", "band must be a pair"),
    ("ChunkTopK(10, tile=8)", "tile must be a pair"),
    ("Accordion(0.1, '0.1')", "high must be a real number"),
    ("WarmUp('high')", "must be a real number"),
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
