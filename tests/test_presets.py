"""Presets: what they are composed of, and how tools find them."""

import importlib
import inspect
import pkgutil
from pathlib import Path

import numpy as np
import pytest

import gradwire
from gradwire.exchange import AllGather, ReduceScatter
from gradwire.memory import LowPass, NoMemory, Residual
from gradwire.presets import PRESETS, call_of
from gradwire.quantize import BFloat16, Float32, SignScale, TwoMeans
from gradwire.sparsify import SID, All, BinMax, Gaussian, Threshold, TopK, Trimmed, TwoSided
from tests.presets.examples import SHAPE, made


def test_compositions():
    assert gradwire.topk(0.01) == gradwire.Codec(sparsify=TopK(ratio=0.01), memory=Residual())
    assert gradwire.topk(k=5) == gradwire.Codec(sparsify=TopK(k=5))
    assert gradwire.sidco(0.01) == gradwire.Codec(sparsify=SID(0.01), quantize=Float32())
    assert gradwire.threshold(0.5) == gradwire.Codec(sparsify=Threshold(0.5))
    assert gradwire.gaussiank(0.01) == gradwire.Codec(sparsify=Gaussian(0.01))
    assert gradwire.redsync(0.01) == gradwire.Codec(sparsify=Trimmed(0.01, method="search"))
    assert gradwire.adacomp(50) == gradwire.Codec(
        sparsify=BinMax(50), quantize=SignScale(scale="bin-max")
    )
    assert gradwire.adaptive() == gradwire.Codec(sparsify=TwoSided(32), quantize=TwoMeans())
    assert gradwire.strom(0.5) == gradwire.Codec(
        sparsify=Threshold(0.5), quantize=SignScale(scale="threshold")
    )
    assert gradwire.dense() == gradwire.Codec(sparsify=All(), memory=NoMemory())


def test_scalecom_is_plain_error_feedback_unless_told_otherwise():
    """0.1, the paper's for very large batches, forgets most of what is not sent."""
    codec = gradwire.scalecom(0.02)
    assert codec.memory == LowPass(1)
    assert gradwire.Codec.from_config(codec.get_config()) == codec
    filtered = gradwire.scalecom(0.02, beta=0.1)
    assert gradwire.Codec.from_config(filtered.get_config()).memory == LowPass(0.1)
    plain = codec.replace(memory=Residual())
    pairs = [(each, each.init_state(1000)) for each in (codec, plain)]
    for seed in range(4):
        x = np.random.default_rng(seed).standard_normal(1000).astype(np.float32)
        ours, theirs = (bytes(each.encode(x, state)) for each, state in pairs)
        assert ours == theirs
        assert pairs[0][1].residual.tobytes() == pairs[1][1].residual.tobytes()


PAGE = Path(__file__).parent.parent / "docs" / "codec-catalogue.md"
PARTS = ["quantize", "memory", "indices", "exchange"]
DECIDED = {
    "adam": {"memory"},
    "adam_onebit": {"quantize", "memory"},
    "dgc": {"memory"},
    "muon": {"memory"},
    "scalecom": {"memory", "exchange"},
    "adacomp": {"quantize"},
    "adaptive": {"quantize"},
    "float8": {"quantize"},
    "natural": {"quantize"},
    "onebit": {"quantize"},
    "qsgd": {"quantize"},
    "signsgd": {"quantize"},
    "strom": {"quantize"},
    "terngrad": {"quantize"},
}
"""The parts that the method itself decides."""


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
def test_a_preset_offers_all_parts_that_its_method_leaves_open(preset):
    names = list(inspect.signature(preset.build).parameters)
    decided = DECIDED.get(preset.name, set())
    if not preset.build(**preset.example).sparsify.selects:
        decided = decided | {"indices"}
    expected = [name for name in PARTS if name not in decided]
    assert names[len(names) - len(expected) :] == expected  # in one order, after its own options
    assert not decided & set(names)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
def test_every_preset_takes_the_parts_it_offers(preset):
    offered = inspect.signature(preset.build).parameters
    fixed = "quantize" not in offered and not preset.build(**preset.example).quantize.contracts
    others = {
        "quantize": BFloat16(),
        "memory": NoMemory() if fixed else Residual(decay=0.5),
        "indices": "rice",
        "exchange": ReduceScatter() if preset.name == "muon" else AllGather(mean="senders"),
    }
    given = {name: part for name, part in others.items() if name in offered}
    codec = preset.build(**(preset.example | given))
    assert {name: getattr(codec, name) for name in given} == given


TAKE_A_RATIO = [
    each for each in PRESETS.values() if "ratio" in inspect.signature(each.build).parameters
]


@pytest.mark.parametrize("preset", TAKE_A_RATIO, ids=lambda preset: preset.name)
def test_a_ratio_is_one_percent_by_default_and_ten_for_muon(preset):
    assert preset.build() == preset.build(ratio=0.1 if preset.name == "muon" else 0.01)


def test_a_codec_can_be_built_by_name():
    assert gradwire.codec("adam", ratio=0.05) == gradwire.adam(ratio=0.05)
    for preset in PRESETS.values():
        assert gradwire.codec(preset.name, **preset.example) == preset.build(**preset.example)
    codec = gradwire.topk(0.1)
    assert gradwire.codec(codec) is codec
    assert gradwire.presets.codec is gradwire.codec


@pytest.mark.parametrize(
    ("given", "options", "error", "message"),
    [
        (
            ("top-k",),
            {},
            ValueError,
            r"unknown codec 'top-k'; choose from adam, .*, sparseloco; did you mean topk\?$",
        ),
        (("zip",), {}, ValueError, r"unknown codec 'zip'; .*, sparseloco$"),
        (
            ("strom",),
            {},
            TypeError,
            r'^strom needs threshold: gradwire.codec\("strom", threshold=0.005\)$',
        ),
        (
            (gradwire.topk,),
            {},
            TypeError,
            r"such as gradwire.topk\(ratio=0.01\); got the function topk itself; call it$",
        ),
        ((TopK(k=1),), {}, TypeError, "got one part of a codec"),
        ((0.01,), {}, TypeError, 'the name of a preset, such as "topk", or a'),
        (
            (gradwire.topk(),),
            {"ratio": 0.1},
            TypeError,
            r"options are only for .*, got ratio with .*: codec.replace\(\) makes a copy",
        ),
        (("adam", 0.05), {}, TypeError, "takes 1 positional argument but 2 were given"),
    ],
)
def test_what_names_no_codec_says_what_to_pass(given, options, error, message):
    with pytest.raises(error, match=message):
        gradwire.codec(*given, **options)


@pytest.mark.parametrize("preset", TAKE_A_RATIO, ids=lambda preset: preset.name)
def test_an_integer_is_no_ratio(preset):
    with pytest.raises(ValueError, match=r"may mean one entry or all: pass .*ratio=1.0 for all$"):
        preset.build(1)
    assert preset.build(1.0)


def test_an_integer_may_be_meant_as_a_number_of_entries():
    with pytest.raises(ValueError, match=r"pass k=1 for one entry, or ratio=1\.0 for all$"):
        gradwire.topk(1)
    with pytest.raises(ValueError, match=r"at most 1, got 50: pass k=50 for that many entries$"):
        gradwire.randomk(50)


def test_the_paper_is_one_call_away():
    codec = gradwire.sidco(0.001, distribution="exponential", stages="paper", band=None)
    assert codec.sparsify == SID(0.001, distribution="exponential", stages="paper", band=None)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
def test_the_registry_lists_what_is_exported(preset):
    assert getattr(gradwire, preset.name) is preset.build
    assert "\n" not in preset.summary
    # The paper of the list is the one the documentation cites.
    if preset.paper is not None:
        cited = " ".join(inspect.getdoc(preset.build).split())
        for paper in preset.paper.split("; "):
            authors, _, rest = paper.partition(": ")
            title, _, venue = rest.rpartition(", ")
            assert f'{authors}, "{title}", {venue}' in cited


def test_every_preset_of_every_family_is_listed():
    families = [each.name for each in pkgutil.iter_modules(gradwire.presets.__path__)]
    made = [
        name
        for family in families
        if not family.startswith("_")
        for name in importlib.import_module(f"gradwire.presets.{family}").__all__
    ]
    assert sorted(made) == sorted(each.name for each in gradwire.presets.OWN)
    assert set(made) <= {*gradwire.__all__} & {*gradwire.presets.__all__}


def test_the_registry_cannot_be_changed():
    with pytest.raises(TypeError):
        PRESETS["mine"] = PRESETS["topk"]


def test_presets_can_be_read_in_a_notebook():
    shown = repr(gradwire.presets.PRESETS)
    for name, preset in gradwire.presets.PRESETS.items():
        assert f"  {name} " in shown
        assert preset.summary in shown
    assert repr(gradwire.presets.PRESETS["topk"]) == (
        "<preset topk(ratio=0.01): exactly the k largest entries, the rest kept for later>"
    )


@pytest.mark.parametrize("preset", PRESETS.values(), ids=list(PRESETS))
def test_rows_whose_gradient_is_zero_stay_as_they_are_unless_the_page_says_so(preset):
    codec = made(preset, SHAPE)
    state, moved = codec.init_state(SHAPE[0] * SHAPE[1]), np.zeros(SHAPE, np.float32)
    largest = 0.0
    for seed in range(20):
        gradient = np.random.default_rng(seed).standard_normal(SHAPE, np.float32)
        gradient[11:20] = 0.0  # the half of a column of "onebit", of 128 entries, and others
        update = gradwire.decode(codec.encode(gradient.ravel(), state)).reshape(SHAPE)
        moved += update
        largest = max(largest, float(abs(update).max()))
    sections = PAGE.read_text("utf-8").split("\n## ")
    (section,) = (each for each in sections if each.startswith(f"{preset.name}\n"))
    assert abs(moved).max() > 0.0
    assert (abs(moved[11:20]).max() > 0.0) == ("It cannot send zero" in section)
    assert abs(moved[11:20]).max() <= largest, "about one magnitude"


def test_the_call_of_a_codec_is_short_and_makes_it_again():
    for preset in PRESETS.values():
        codec = preset.build(**preset.example)
        call = call_of(codec)
        assert eval(call, {"gradwire": gradwire}) == codec
        assert call.startswith(f"gradwire.{preset.name}(") or len(call) < 32
    assert call_of(gradwire.adam()) == "gradwire.adam(ratio=0.01)"
    assert call_of(gradwire.float8("e5m2")) == "gradwire.float8(format='e5m2')"
    assert call_of(gradwire.topk(k=5)) == "gradwire.topk(k=5)"
    plain = gradwire.adam(0.1, quantize=Float32())
    assert call_of(plain) == "gradwire.adam(ratio=0.1, quantize=gradwire.quantize.Float32())"
    named = {"head.*": None, "*": gradwire.dgc()}
    assert call_of(named) == "{'head.*': None, '*': gradwire.dgc(ratio=0.01)}"
    odd = gradwire.Codec(sparsify=Threshold(0.5), memory=LowPass(0.5), quantize=TwoMeans())
    assert eval(call_of(odd), {"gradwire": gradwire}) == odd
