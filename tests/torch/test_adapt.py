"""Adapted, torch's optimizers are as they were, but for groups that hold what a codec computed."""

import copy
import pickle

import pytest
import torch
from torch.optim import SGD, Adam, AdamW

from gradwire.torch import optim

SHAPES = ((7, 5), (11,), ())


def parameters() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in SHAPES]


def train(optimizer: torch.optim.Optimizer, steps: range, schedule=None) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for group in optimizer.param_groups:
            for each in group["params"]:
                each.grad = torch.randn(each.shape, generator=generator)
        optimizer.step()
        if schedule is not None:
            schedule.step()


def groups(held: list[torch.Tensor]) -> list[dict[str, object]]:
    return [{"params": held[:1], "lr": 0.02, "weight_decay": 0.0}, {"params": held[1:]}]


WAYS = [
    *[{}, {"foreach": False}, {"foreach": True}, {"fused": True}],
    {"lr": torch.tensor(1e-2)},
]


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (AdamW, {"weight_decay": 0.1}),
        (AdamW, {"weight_decay": 0.1, "amsgrad": True}),
        (Adam, {"weight_decay": 0.1}),
        (SGD, {}),
        (SGD, {"weight_decay": 0.1, "momentum": 0.9, "nesterov": True}),
        (SGD, {"weight_decay": 0.1, "momentum": 0.9, "dampening": 0.5}),
    ],
    ids=str,
)
def test_what_no_codec_computes_is_updated_as_by_torch_bit_for_bit(kind, options, way, maximize):
    found, states = [], []
    for adapts in (False, True):
        held, given = parameters(), copy.deepcopy(way)  # a rate in a tensor is changed in place
        rest = parameters()
        own = [*groups(held), {"params": rest, "corrected": True}][: 3 if adapts else 2]
        optimizer = kind(own, **{"lr": 1e-2, "maximize": maximize, **options, **given})
        if adapts:
            assert optim.adapt(optimizer) is optim.adapt(optimizer) is optimizer
        train(optimizer, range(6), torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5))
        found.append(held)
        states.append(optimizer.state_dict()["state"])
    assert type(optimizer) is kind
    assert all(map(torch.equal, *found))
    assert all(str(states[0][key]) == str(states[1][key]) for key in states[0])


def test_a_step_can_be_differentiated_as_before():
    for kind in (AdamW, SGD):
        found = []
        for change in (lambda each: each, optim.adapt):
            weight, gradient = (
                each.requires_grad_() for each in (torch.ones(5), torch.arange(1.0, 6.0))
            )
            stepped = weight.clone()
            stepped.grad = gradient
            change(kind([stepped], lr=0.1, weight_decay=0.1, differentiable=True)).step()
            found.append(torch.autograd.grad(stepped.square().sum(), [weight, gradient]))
        assert all(map(torch.equal, *found))


@pytest.mark.parametrize("kind", [torch.optim.NAdam, torch.optim.RMSprop])
def test_only_four_optimizers_are_adapted(kind):
    with pytest.raises(
        TypeError, match=f"only torch.optim.AdamW, Adam, SGD and Muon.*{kind.__name__}"
    ):
        optim.adapt(kind(parameters()))


def test_a_step_kept_by_others_applies_what_a_codec_computed():
    """As loss scalers and schedulers do that were made before."""
    held = parameters()
    before = [each.detach().clone() for each in held]
    optimizer = AdamW([{"params": held, "corrected": True}], lr=0.5, weight_decay=0.0)
    step = optimizer.step
    torch.optim.lr_scheduler.StepLR(optimizer, 2)
    optim.adapt(optimizer)
    for each in held:
        each.grad = torch.ones_like(each)
    step()
    optimizer.step()
    assert all(torch.equal(each, old - 1.0 - 1.0) for each, old in zip(held, before, strict=True))


def test_a_step_that_raises_loses_nothing():
    held, dense = parameters(), parameters()
    before = [each.detach().clone() for each in held]
    optimizer = optim.adapt(
        AdamW([{"params": held, "corrected": True}, {"params": dense}], lr=0.5, weight_decay=0.0)
    )
    for each in (*held, *dense):
        each.grad = torch.ones_like(each)
    optimizer.param_groups[1]["betas"] = (0.9,)
    with pytest.raises(ValueError, match="unpack"):
        optimizer.step()
    assert all(map(torch.equal, held, before))
    optimizer.param_groups[1]["betas"] = (0.9, 0.999)
    optimizer.step()
    assert all(torch.equal(each, old - 1.0) for each, old in zip(held, before, strict=True))
    assert all(torch.equal(each.grad, torch.ones_like(each)) for each in held)


@pytest.mark.parametrize("fused", [None, True])
def test_a_loss_scaler_unscales_what_is_updated_by_torch_whatever_the_kernel(fused):
    """Torch leaves that to fused kernels, which steps of a codec never go through."""
    weights = []
    for scale in (None, 1024.0):
        dense, coded = parameters(), parameters()
        optimizer = AdamW([{"params": dense}, {"params": coded, "corrected": True}], fused=fused)
        optim.adapt(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
        scaler.scale(torch.ones(()))  # as a loss, which makes its scale
        for each in (*dense, *coded):
            each.grad = torch.full_like(each, 0.5 * (scale or 1.0))
        scaler.step(optimizer)
        weights.append([each.detach() for each in (*dense, *coded)])
        if scale is not None:
            before = [each.clone() for each in weights[-1]]
            scaler.update()
            for each in (*dense, *coded):
                each.grad = torch.full_like(each, torch.inf)
            scaler.step(optimizer)
            assert all(map(torch.equal, weights[-1], before))
    assert all(map(torch.equal, *weights))


@pytest.mark.parametrize("foreach", [None, False])
@pytest.mark.parametrize("maximize", [False, True])
def test_steps_of_a_codec_are_subtracted_after_the_decay_of_weights(foreach, maximize):
    held = parameters()
    before = [each.detach().clone() for each in held]
    options = {"params": held, "corrected": True}
    optimizer = AdamW([options], lr=0.5, weight_decay=0.1, maximize=maximize, foreach=foreach)
    optim.adapt(optimizer)
    train(optimizer, range(1))
    sign = 1.0 if maximize else -1.0
    for each, old in zip(held, before, strict=True):
        torch.testing.assert_close(each.detach(), old * (1 - 0.5 * 0.1) + sign * each.grad)
    assert not optimizer.state


def test_hooks_of_users_run_once_a_step_and_see_gradients():
    calls = []

    def look(optimizer: torch.optim.Optimizer, *_: object) -> None:
        calls.append(optimizer.param_groups[0]["params"][0].grad is not None)

    for corrected in (False, True):
        held = parameters()
        optimizer = AdamW([{"params": held, "corrected": corrected}])
        for adapts in (False, True):
            if adapts:
                optim.adapt(optimizer)
            optimizer.register_step_post_hook(look)
            optimizer.register_step_pre_hook(look)
        train(optimizer, range(1))
    assert calls == [True] * 8


def test_a_closure_is_evaluated_once_with_gradients_enabled():
    seen = []

    def closure() -> float:
        seen.append(torch.is_grad_enabled())
        return 3.0

    for corrected in (False, True):
        optimizer = optim.adapt(AdamW([{"params": parameters(), "corrected": corrected}]))
        assert optimizer.step(closure) == optimizer.step(closure=closure) == 3.0
    assert seen == [True] * 4


def test_copies_are_not_adapted():
    held = parameters()
    optimizer = optim.adapt(AdamW([{"params": held, "corrected": True}]))
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert not other._optimizer_step_pre_hooks
        assert not any("gradwire" in name for name in vars(other))


def test_a_learning_rate_may_be_a_tensor():
    held, same = parameters(), parameters()
    for each, rate in ((held, torch.tensor(0.25)), (same, 0.25)):
        train(optim.adapt(AdamW([{"params": each, "corrected": True}], lr=rate)), range(1))
    assert all(map(torch.equal, held, same))
