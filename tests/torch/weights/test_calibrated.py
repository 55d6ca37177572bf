"""Packing a model by a calibration and under a budget: what is gained, said and refused."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from gradwire import quantize
from gradwire.torch import weights
from gradwire.weights.budget import allocate
from tests.torch.weights.test_pack import bytes_of, unchanged

THREE = {"*": quantize.Affine(3, 32)}


def make():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
        nn.Linear(64, 10),
    ).eval()  # fmt: skip


def inputs(count=512, seed=1):
    """Inputs that depend on each other, as a layer's do."""
    random = torch.Generator().manual_seed(seed)
    return torch.randn(count, 8, generator=random) @ torch.randn(
        8, 32, generator=torch.Generator().manual_seed(9)
    ) + 0.1 * torch.randn(count, 32, generator=random)


def calibrated(model, x=None, **options):
    with weights.Calibration(model, **options) as seen, torch.no_grad():
        for batch in (inputs() if x is None else x).split(128):
            model(batch)
    return seen


def error(model, rules=THREE, **options):
    """The error of a packed model's outputs for inputs that no calibration has seen."""
    x = inputs(seed=2)
    with torch.no_grad():
        exact = model(x)
        weights.pack(model, rules, **options)
        return float((model(x) - exact).norm() / exact.norm())


def test_a_calibrated_model_keeps_its_outputs_better_than_the_nearest_codes():
    model = make()
    seen = calibrated(model)
    comq, gptq = (
        error(make(), calibration=seen, rounding=each) for each in (weights.COMQ(), weights.GPTQ())
    )
    assert error(make(), calibration=seen) == comq
    assert comq < 1.1 * gptq < 0.7 * error(make())


def test_a_report_says_what_chose_the_codes_and_what_outputs_lose():
    model = make()
    report = weights.pack(
        model,
        {"0.weight": quantize.Affine(4, 32), "5.weight": quantize.Affine(4, 32), "*": None},
        calibration={"5.weight": calibrated(model)["5.weight"]},
        rounding=weights.GPTQ(),
        prepare=weights.MagR(),
    )
    first, last = report.tensors
    assert (first.rounding, first.output_error) == ("nearest", None)
    assert last.rounding == "MagR, GPTQ"
    assert 0 < last.output_error < last.error
    assert last.seconds > 0
    assert last.costs is None
    lines = str(report).splitlines()
    assert lines[0].split() == [
        "name", "shape", "bits", "bytes", "error", "outputs", "s", "rounding", "held",
    ]  # fmt: skip
    assert f"{100 * last.output_error:.2f} %" in lines[2]
    assert f"mean error of outputs {last.output_error:.1%}" in lines[3]


def test_layers_that_were_hardly_seen_are_told_and_packed_all_the_same():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(32, 32), nn.Linear(32, 32)

        def forward(self, x):
            return self.used(x)

    model = Experts()
    seen = calibrated(model, inputs(20))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        report = weights.pack(model, THREE, calibration=seen)
    messages = [str(each.message) for each in told]
    assert any("fewer inputs of used.weight than" in each for each in messages)
    assert any("no input reached unused.weight" in each for each in messages)
    assert [each.rounding for each in report.tensors] == ["COMQ", "nearest"]


def test_a_head_that_is_tied_to_an_embedding_keeps_the_nearest_codes():
    """Codes for the inputs of the head alone are worse where they are looked up."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.inner = nn.Embedding(40, 32), nn.Linear(32, 32)
            self.head = nn.Linear(32, 40, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.inner(self.embed(x)))

    torch.manual_seed(3)
    model, ids = Tied(), torch.arange(40)
    nearest = copy.deepcopy(model)
    weights.pack(nearest, THREE)
    for options in ({}, {"sequential": True}):
        packed = copy.deepcopy(model)
        with weights.Calibration(packed, **options) as seen:
            packed(ids)
        report = weights.pack(packed, THREE, calibration=seen)
        assert [each.rounding for each in report.tensors] == ["nearest (shared)", "COMQ"]
        assert torch.equal(packed.embed(ids), nearest.embed(ids))
        assert torch.equal(packed.head(torch.eye(32)), nearest.head(torch.eye(32)))


class Interrupted(weights.COMQ):
    """A solver that is stopped in its second layer."""

    def solve(self, w, gram, affine):
        if w.shape[0] == 10:
            raise KeyboardInterrupt
        return super().solve(w, gram, affine)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"calibration": lambda seen: {**seen, "7.weight": seen["0.weight"]}},
            *(ValueError, "this one has no weight '7.weight'"),
        ),
        (
            {"calibration": lambda seen: {"0.weight": seen["3.weight"]}},
            *(ValueError, r"'0.weight' has shape \(64, 32\), but its Gram"),
        ),
        ({"rounding": weights.COMQ()}, ValueError, "pass calibration="),
        ({"prepare": weights.MagR()}, ValueError, "pass calibration="),
        ({"calibration": dict, "more": (4,)}, ValueError, "leave out more= or calibration="),
        ({"calibration": dict, "rounding": Interrupted()}, KeyboardInterrupt, ""),
    ],
)
def test_what_is_refused_or_interrupted_leaves_the_model_as_it_was(options, kind, message):
    model = make()
    before = bytes_of(model)
    if callable(options.get("calibration")):
        options = {**options, "calibration": options["calibration"](calibrated(model))}
    with pytest.raises(kind, match=message):
        weights.pack(model, THREE, **options)
    assert unchanged(model, before)


def test_layers_behind_packed_ones_are_calibrated_by_what_these_make():
    model = make()
    seen = calibrated(model, sequential=True)
    before = bytes_of(model)
    with pytest.raises(KeyboardInterrupt):
        weights.pack(model, THREE, calibration=seen, rounding=Interrupted())
    assert unchanged(model, before)
    rules = {"*": quantize.Affine(2, 32)}
    plain = error(make(), rules, calibration=calibrated(make()))
    assert error(model, rules, calibration=seen) < 1.1 * plain


# Budgets


def loss_of(model):
    x = inputs(seed=3)
    with torch.no_grad():
        y = model.eval()(x).argmax(1)
    return lambda: nn.functional.cross_entropy(model(x), y)


@pytest.mark.parametrize("by", ["loss", "outputs", "weights"])
def test_a_budget_is_kept_and_chooses_the_least_cost(by):
    model = make()
    budget = weights.Budget(4.0, loss=loss_of(model) if by == "loss" else None,
                            grid=quantize.Affine(4, 32))  # fmt: skip
    calibration = None if by == "weights" else calibrated(model)
    rules = {"*weight": budget}
    report = weights.pack(model, rules, calibration=calibration)
    numels = [np.prod(each.shape) for each in report.tensors]
    norm = 64  # the batch norm's weight is counted, and stays
    assert 8 * (report.nbytes - 4 * (64 + 64 + 64 + 10)) <= 4.0 * (sum(numels) + norm)
    sizes = [
        [8 * 56 + int(n) * bits + int(n) // 32 * 32 for bits in budget.choices] for n in numels
    ]
    costs = [[each.costs[bits] for bits in budget.choices] for each in report.tensors]
    chosen = allocate(sizes, costs, int(4.0 * (sum(numels) + norm)) - 32 * norm)
    assert [each.bits for each in report.tensors] == [budget.choices[i] for i in chosen]
    assert len({each.bits for each in report.tensors}) > 1
    assert str(report).splitlines()[0].split()[-9:-1] == [
        "at", "2", "at", "3", "at", "4", "at", "8",
    ]  # fmt: skip


def test_a_loss_that_fails_or_counts_on_training_leaves_the_model_as_it_was():
    model = make().train()
    model[1].eval()
    before, modes = bytes_of(model), [each.training for each in model.modules()]
    calls = []

    def loss():
        calls.append(torch.is_grad_enabled() or any(each.training for each in model.modules()))
        model(inputs())
        if len(calls) == 5:
            raise RuntimeError("no more data")
        return 1.0

    with pytest.raises(RuntimeError, match="no more data"):
        weights.pack(model, {"*": weights.Budget(6, grid=quantize.Affine(4, 32), loss=loss)})
    assert not any(calls)
    assert unchanged(model, before)
    assert [each.training for each in model.modules()] == modes


@pytest.mark.parametrize("bits", [2.0, 12.0])
def test_a_budget_that_cannot_be_kept_or_spent_is_refused(bits):
    model = make()
    before = bytes_of(model)
    with pytest.raises(ValueError, match=f"{bits:g} bits per weight is not between 4"):
        weights.pack(model, {"*": weights.Budget(bits, grid=quantize.Affine(4, 32))})
    assert unchanged(model, before)


def test_a_budget_counts_what_must_stay_and_leaves_what_other_rules_name():
    torch.manual_seed(0)
    # No block of 16 to 32 divides a row of 37.
    model = nn.Sequential(nn.Linear(32, 37), nn.Linear(37, 64), nn.Linear(64, 64))
    budget = weights.Budget(14.0, grid=quantize.Affine(4, 32))
    rules = {"0.weight": quantize.Affine(8, 32), "*.weight": budget}
    report = weights.pack(model, rules)
    assert (report.tensors[0].name, report.tensors[0].bits) == ("0.weight", 8)
    assert "1.weight" in report.left
    own = 8 * report.tensors[1].nbytes + 32 * 37 * 64
    assert own <= 14.0 * (37 * 64 + 64 * 64)
