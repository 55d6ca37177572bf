"""Changes between backward() and step(): of gradients that are updates, and of learning rates."""

import contextlib
import warnings

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

import gradwire
from gradwire.torch import ddp

pytestmark = pytest.mark.usefixtures("group")


def by_numpy(parameters, _):
    for each in parameters:
        each.grad.numpy()[:] *= 0.5


def by_another_tensor(parameters, _):
    for each in parameters:
        each.grad = each.grad * 0.5


def by_other_memory(parameters, _):
    for each in parameters:
        each.grad.data = each.grad.data * 0.5


def by_one_layer(parameters, _):
    parameters[-2].grad.data.mul_(0.5)


def by_norm(parameters, _):
    nn.utils.clip_grad_norm_(parameters, 1e-3)


def by_a_fused_step(_, optimizer):
    optimizer.grad_scale = torch.tensor(2.0)


def by_nothing(*_):
    pass


def by_reading(parameters, _):
    nn.utils.get_total_norm([each.grad for each in parameters])


def by_a_copy(parameters, _):
    for each in parameters:
        each.grad = each.grad.clone()


def by_uncompressed_ones(parameters, _):
    parameters[1].grad.mul_(0.5)


CHANGES = [by_numpy, by_another_tensor, by_other_memory, by_one_layer, by_norm, by_a_fused_step]
HARMLESS = [by_nothing, by_reading, by_a_copy, by_uncompressed_ones]


def messages(optimize, codec, change, steps=3, **options):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2000))
    model = nn.parallel.DistributedDataParallel(layers, **options)
    optimizer = optimize(model.parameters())
    with (
        ddp.attach(model, codec, optimizer=optimizer),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(4, 64)).square().mean().backward()
            change(list(model.parameters()), optimizer)
            if change is by_a_fused_step:
                with contextlib.suppress(AssertionError):  # of torch: the step is not fused
                    optimizer.step()
            else:
                optimizer.step()
    found = [each for each in caught if each.category is ddp.PairingWarning]
    assert all(each.filename == __file__ for each in found)
    return [str(each.message) for each in found]


ADAM, DGC = lambda groups: AdamW(groups, lr=1e-3), lambda groups: SGD(groups, lr=0.1, momentum=0.9)


STEPPED = pytest.mark.parametrize(
    ("codec", "optimize", "view"), [("adam", ADAM, True), ("dgc", DGC, False)], ids=["adam", "dgc"]
)


@STEPPED
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_updates_is_told_once_however_it_is_made(change, codec, optimize, view):
    (text,) = messages(optimize, codec, change, gradient_as_bucket_view=view)
    assert "changed .grad" in text
    assert "attach(..., grad_scaler=)" in text


@STEPPED
@pytest.mark.parametrize("change", HARMLESS)
def test_what_changes_no_update_is_not_told(change, codec, optimize, view):
    assert not messages(optimize, codec, change, gradient_as_bucket_view=view)


@pytest.mark.parametrize("change", CHANGES)
def test_averages_of_gradients_may_be_changed(change):
    assert not messages(lambda groups: SGD(groups, lr=0.1), "topk", change)


def set_rate(rate):
    def change(_, optimizer):
        for each in optimizer.param_groups:
            each["lr"] = rate

    return change


def set_rate_in_place(_, optimizer):
    optimizer.param_groups[0]["lr"].fill_(0.0)


def test_a_rate_that_is_set_after_the_backward_pass_is_told_once():
    (text,) = messages(ADAM, "adam", set_rate(0.0))
    assert "changed between backward() and step(), from 0.001 to 0 in group 0" in text
    (text,) = messages(
        lambda groups: AdamW(groups, lr=torch.tensor(1e-3)), "adam", set_rate_in_place
    )
    assert "changed between backward() and step(): the updates" in text
    assert not messages(ADAM, "adam", set_rate(1e-3))
    assert not messages(DGC, "dgc", set_rate(0.0)), "SGD applies its own rate"


def test_a_group_that_is_added_after_the_backward_pass_is_told():
    def add(parameters, optimizer):
        if len(optimizer.param_groups) == 1:
            optimizer.add_param_group({"params": parameters[2:], "lr": 0.5})

    with pytest.warns(ddp.PairingWarning, match="not in any group"):
        (text,) = messages(lambda every: AdamW(list(every)[:2], lr=1e-3), "adam", add)
    assert "from 0 to 0.5 in group 1" in text


def test_rates_that_no_codec_applies_may_change_late():
    codecs = {"2.*": gradwire.adam(), "*": gradwire.float8()}

    def change(_, optimizer):
        optimizer.param_groups[0]["lr"] *= 0.5

    def optimize(every):
        first, second, *others = every
        return AdamW([{"params": [first, second]}, {"params": others}], lr=1e-3)

    assert not messages(optimize, codecs, change)


@pytest.mark.filterwarnings("error::gradwire.torch.ddp.PairingWarning")
def test_decay_that_is_set_after_the_backward_pass_is_applied():
    """Weights are halved, or more; the gradient's step is at most one of the rate."""
    moves = []
    for codec in (None, "adam"):
        torch.manual_seed(0)
        model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
        optimizer = AdamW(model.parameters(), lr=1e-2, betas=(0.0, 0.999), weight_decay=0.0)
        attached = ddp.attach(model, codec, optimizer=optimizer) if codec else None
        with attached or contextlib.nullcontext():
            model(torch.ones(4, 64)).square().mean().backward()
            before = model.module.weight.detach().clone()
            optimizer.param_groups[0]["weight_decay"] = 100.0
            optimizer.step()
            moves.append(model.module.weight.detach() - before)
    assert torch.allclose(*moves, atol=2e-2)
    assert moves[0].abs().max() > 5e-2
