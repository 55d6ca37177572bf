"""What the demo and the comparison train each method with: optimizer and learning rate."""

import warnings

import pytest

pytest.importorskip("torch", reason="builds optimizers")

import torch

import gradwire
from benches.harness import recipes
from benches.harness.recipes import Rate, rate_for, recipe_for
from gradwire.memory import AdamCorrection, NoMemory
from gradwire.presets import PRESETS
from gradwire.sparsify import TopK
from gradwire.torch.ddp import PairingWarning
from gradwire.torch.engine.config import Assignment
from gradwire.torch.engine.pairing import check_pairing, warn_of_pairing
from gradwire.torch.engine.parameter import ParameterSlot

SPARSE = gradwire.topk(ratio=0.01)
CODEC = gradwire.Codec


@pytest.mark.parametrize(
    ("codec", "text", "digits"),
    [
        (None, "AdamW(0.9, 0.999)", "SGD(0.9)"),
        (gradwire.onebit(column=128), "AdamW(0, 0.999)", "SGD(0.9)"),
        (SPARSE, "AdamW(0, 0.999)", "SGD(0)"),
        (CODEC(sparsify=TopK(ratio=0.1), memory=NoMemory()), "AdamW(0.9, 0.999)", "SGD(0.9)"),
        (gradwire.dgc(ratio=0.01, momentum=0.5), "SGD(0.5)", "SGD(0.5)"),
        (gradwire.adam(beta2=0.95), "AdamW(0.9, 0.95)", "AdamW(0.9, 0.95)"),
    ],
)
def test_the_optimizer_follows_from_the_codec(codec, text, digits):
    assert str(recipe_for("adamw", codec)) == text
    assert str(recipe_for("sgd", codec)) == digits


# No task is trained with Muon alone, which takes matrices only.
@pytest.mark.parametrize("name", [name for name in PRESETS if name != "muon"])
@pytest.mark.parametrize("usual", ["adamw", "sgd"])
def test_attach_accepts_what_is_recommended_for_every_preset(name, usual):
    codec = PRESETS[name].build(**PRESETS[name].example)
    tensor = torch.nn.Parameter(torch.zeros(2048))
    optimizer = recipe_for(usual, codec).optimizer([tensor], 0.5)
    (codec,) = Assignment(codec).for_optimizers([optimizer], {"weight": tensor}).codecs
    compressed = [ParameterSlot("weight", tensor)]
    check_pairing(codec, optimizer, compressed)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PairingWarning)
        warn_of_pairing(codec, optimizer, compressed)


def entry(call, codec, optimizer, rate):
    config = None if codec is None else codec.get_config()
    about = {"method": call.partition("(")[0], "call": call, "codec": config, "losses": {}}
    return {**about, "optimizer": optimizer, "learning_rate": rate}


@pytest.fixture
def measured(monkeypatch):
    """A table of a few methods, one of them not measured yet."""
    usual, without = "AdamW(0.9, 0.999)", "AdamW(0, 0.999)"
    own = "gradwire AdamW(0.9, 0.999)"
    text = [
        entry("none", None, usual, 0.001),
        entry("topk(ratio=0.01)", gradwire.topk(ratio=0.01), without, 0.002),
        entry("topk(ratio=0.1)", gradwire.topk(ratio=0.1), without, 0.004),
        entry("sidco(ratio=0.01)", gradwire.sidco(ratio=0.01), without, 0.008),
        entry("adam(ratio=0.01)", gradwire.adam(ratio=0.01), own, 0.016),
        entry("qsgd()", gradwire.qsgd(), usual, None),
    ]
    monkeypatch.setattr(recipes, "measured_rates", lambda: {"tasks": {"text": text}})


@pytest.mark.parametrize(
    ("method", "codec", "rate"),
    [
        ("none", None, Rate(0.001)),
        ("bf16", None, Rate(0.001, "that of none")),
        ("topk", gradwire.topk(ratio=0.1), Rate(0.004)),
        ("topk", gradwire.topk(ratio=0.05), Rate(0.002, "that of topk(ratio=0.01)")),
        ("sidco", gradwire.sidco(ratio=0.2), Rate(0.008, "that of sidco(ratio=0.01)")),
        ("gaussiank", gradwire.gaussiank(ratio=0.01), Rate(0.002, "that of topk(ratio=0.01)")),
        ("qsgd", gradwire.qsgd(), Rate(0.001, "that of none")),
        (
            "",
            CODEC(sparsify=TopK(ratio=0.01), memory=AdamCorrection(beta2=0.95)),
            Rate(0.001, "that of none"),
        ),
        ("dgc", gradwire.dgc(ratio=0.01), Rate(recipes.USUAL["SGD("], "not measured")),
    ],
)
@pytest.mark.usefixtures("measured")
def test_a_rate_is_the_measured_one_or_that_of_the_preset_or_of_its_optimizer(method, codec, rate):
    assert rate_for("text", method, codec, str(recipe_for("adamw", codec))) == rate
