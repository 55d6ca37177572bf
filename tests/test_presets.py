"""Presets: what they are composed of, and how tools find them."""

import dataclasses
import importlib
import inspect
import pkgutil

import numpy as np
import pytest

import gradwire
from gradwire.exchange import AllGather
from gradwire.memory import LowPass, NoMemory, Residual
from gradwire.presets import PRESETS
from gradwire.quantize import BFloat16, Float32, SignScale, TwoMeans
from gradwire.sparsify import SID, All, BinMax, Gaussian, Threshold, TopK, Trimmed, TwoSided


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
    plain = dataclasses.replace(codec, memory=Residual())
    pairs = [(each, each.init_state(1000)) for each in (codec, plain)]
    for seed in range(4):
        x = np.random.default_rng(seed).standard_normal(1000).astype(np.float32)
        ours, theirs = (bytes(each.encode(x, state)) for each, state in pairs)
        assert ours == theirs
        assert pairs[0][1].residual.tobytes() == pairs[1][1].residual.tobytes()


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
def test_every_preset_takes_the_parts_it_offers(preset):
    offered = inspect.signature(preset.build).parameters
    fixed = "quantize" not in offered and not preset.build(**preset.example).quantize.contracts
    others = {
        "quantize": BFloat16(),
        "memory": NoMemory() if fixed else Residual(decay=0.5),
        "exchange": AllGather(mean="senders"),
    }
    given = {name: part for name, part in others.items() if name in offered}
    codec = preset.build(**(preset.example | given))
    assert {name: getattr(codec, name) for name in given} == given


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
