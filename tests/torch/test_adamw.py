"""Without a codec AdamW and SGD are torch's, and groups may hold steps that a codec computed."""

import copy
import inspect
import pickle

import pytest
import torch

from gradwire.torch.optim import SGD, AdamW

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


BOTH = [(AdamW, torch.optim.AdamW), (SGD, torch.optim.SGD)]
WAYS = [
    *[{}, {"foreach": False}, {"foreach": True}, {"fused": True}],
    {"lr": torch.tensor(1e-2)},
]


@pytest.mark.parametrize(("ours", "theirs"), BOTH)
def test_they_are_called_as_torchs(ours, theirs):
    assert inspect.signature(ours) == inspect.signature(theirs)
    assert ours(parameters()).defaults == theirs(parameters()).defaults
    # lr, momentum, dampening, weight decay; or lr, betas, eps, weight decay, amsgrad.
    values = (0.1, 0.8, 0.2, 0.3) if ours is SGD else (0.1, (0.8, 0.9), 1e-7, 0.3, True)
    assert ours(parameters(), *values).defaults == theirs(parameters(), *values).defaults


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(
    ("pair", "options"),
    [
        (BOTH[0], {"weight_decay": 0.1}),
        (BOTH[0], {"weight_decay": 0.1, "amsgrad": True}),
        (BOTH[1], {}),
        (BOTH[1], {"weight_decay": 0.1, "momentum": 0.9, "nesterov": True}),
        (BOTH[1], {"weight_decay": 0.1, "momentum": 0.9, "dampening": 0.5}),
    ],
    ids=str,
)
def test_not_attached_it_is_torchs_bit_for_bit(pair, options, way, maximize):
    found = []
    for kind in pair:
        held, given = parameters(), copy.deepcopy(way)  # a rate in a tensor is changed in place
        optimizer = kind(groups(held), **{"lr": 1e-2, "maximize": maximize, **options, **given})
        train(optimizer, range(6), torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5))
        found.append(held)
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize(("ours", "theirs"), BOTH)
def test_not_attached_a_step_can_be_differentiated_as_torchs(ours, theirs):
    found = []
    for kind in (ours, theirs):
        weight, gradient = (
            each.requires_grad_() for each in (torch.ones(5), torch.arange(1.0, 6.0))
        )
        stepped = weight.clone()
        stepped.grad = gradient
        kind([stepped], lr=0.1, weight_decay=0.1, differentiable=True).step()
        found.append(torch.autograd.grad(stepped.square().sum(), [weight, gradient]))
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.5}])
@pytest.mark.parametrize("ours_first", [True, False])
def test_checkpoints_go_to_torchs_sgd_and_back(ours_first, options):
    kinds = (SGD, torch.optim.SGD) if ours_first else (torch.optim.SGD, SGD)
    held, whole = parameters(), parameters()
    first = kinds[0](groups(held), lr=1e-2, **options)
    train(first, range(3))
    second = kinds[1](groups(held), lr=1.0)
    second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
    train(second, range(3, 6))
    train(torch.optim.SGD(groups(whole), lr=1e-2, **options), range(6))
    assert all(map(torch.equal, held, whole))


@pytest.mark.parametrize("fused", [None, True])
@pytest.mark.parametrize("ours_first", [True, False])
def test_checkpoints_go_to_torchs_adamw_and_back(ours_first, fused):
    kinds = (AdamW, torch.optim.AdamW) if ours_first else (torch.optim.AdamW, AdamW)
    held, whole = parameters(), parameters()
    first = kinds[0](groups(held), lr=1e-2, fused=fused)
    train(first, range(3))
    second = kinds[1](groups(held), lr=1.0, fused=fused)
    second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
    train(second, range(3, 6))
    train(torch.optim.AdamW(groups(whole), lr=1e-2, fused=fused), range(6))
    assert all(map(torch.equal, held, whole))


@pytest.mark.parametrize("fused", [None, True])
def test_a_loss_scaler_unscales_what_is_updated_by_torch_whatever_the_kernel(fused):
    """Torch leaves that to fused kernels, which steps of a codec never go through."""
    weights = []
    for scale in (None, 1024.0):
        dense, coded = parameters(), parameters()
        optimizer = AdamW([{"params": dense}, {"params": coded, "corrected": True}], fused=fused)
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
    train(optimizer, range(1))
    sign = 1.0 if maximize else -1.0
    for each, old in zip(held, before, strict=True):
        torch.testing.assert_close(each.detach(), old * (1 - 0.5 * 0.1) + sign * each.grad)
    assert not optimizer.state


def test_hooks_of_users_run_once_a_step():
    torch.optim.AdamW(parameters())  # which makes torch wrap its own step
    calls = []
    for corrected in (False, True):
        optimizer = AdamW([{"params": parameters(), "corrected": corrected}])
        optimizer.register_step_post_hook(lambda *_: calls.append("after"))
        optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
        train(optimizer, range(1))
    assert calls == ["before", "after"] * 2


def test_a_closure_is_evaluated_once_with_gradients_enabled():
    seen = []

    def closure() -> float:
        seen.append(torch.is_grad_enabled())
        return 3.0

    for corrected in (False, True):
        optimizer = AdamW([{"params": parameters(), "corrected": corrected}])
        assert optimizer.step(closure) == 3.0
    assert seen == [True, True]


def test_copies_are_not_attached():
    optimizer = AdamW(parameters())
    optimizer._attach(object())
    assert copy.deepcopy(optimizer)._links == ()
    assert pickle.loads(pickle.dumps(optimizer))._links == ()


def test_a_learning_rate_may_be_a_tensor():
    held, same = parameters(), parameters()
    train(AdamW([{"params": held, "corrected": True}], lr=torch.tensor(0.25)), range(1))
    train(AdamW([{"params": same, "corrected": True}], lr=0.25), range(1))
    assert all(map(torch.equal, held, same))


@pytest.mark.parametrize("options", [{"lr": -1.0}, {"betas": (1.0, 0.9)}, {"eps": -1.0}])
def test_values_without_meaning_are_refused(options):
    with pytest.raises(ValueError, match="Invalid"):
        AdamW(parameters(), **options)
