"""Each row of the table of modules: gradients without bias at 4 bits, and exact where promised."""

import itertools
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

from gradwire.torch import activations
from gradwire.torch.activations.table import TABLE, Reads
from tests.torch.activations.test_attach_surroundings import hooks_are_off

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SEEDS = 50

ELEMENTWISE: list[nn.Module] = [
    nn.ELU(),
    nn.ELU(2.0),
    nn.ELU(0.3),
    nn.ELU(0.3, inplace=True),
    nn.CELU(0.7),
    nn.CELU(2.0, inplace=True),
    nn.SELU(),
    nn.SELU(inplace=True),
    nn.GELU(),
    nn.GELU("tanh"),
    nn.Hardswish(),
    nn.Mish(),
    nn.SiLU(),
    nn.SiLU(inplace=True),
    nn.Softplus(),
    nn.Softplus(2.0, 1.0),
    nn.Sigmoid(),
    nn.Tanh(),
]
EXACT: list[nn.Module] = [
    nn.ReLU(),
    nn.ReLU(inplace=True),
    nn.LeakyReLU(0.3),
    nn.LeakyReLU(1.0),
    nn.ELU(0.0),
    nn.ReLU6(),
    nn.Hardtanh(-0.3, 0.7),
    nn.Hardtanh(-0.3, 0.7, inplace=True),
    nn.Hardsigmoid(),
]
NORMS: list[tuple[nn.Module, tuple[int, ...]]] = [
    (nn.BatchNorm1d(24), (64, 24)),
    (nn.BatchNorm2d(8), (8, 8, 5, 7)),
    (nn.BatchNorm3d(4), (8, 4, 3, 4, 5)),
    (nn.InstanceNorm1d(8), (8, 8, 50)),
    (nn.InstanceNorm2d(8), (8, 8, 7, 7)),
    (nn.InstanceNorm3d(4), (8, 4, 3, 4, 5)),
    (nn.GroupNorm(4, 8), (8, 8, 50)),
    (nn.LayerNorm(24), (64, 24)),
    (nn.RMSNorm(24), (64, 24)),
]


def gradient(module: nn.Module, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    given = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(module(given * 1), given, g)
    return found.to(torch.float64)


def bias(module: nn.Module, x: torch.Tensor) -> float:
    """How far the mean over seeds is off, beyond the noise of their mean."""
    g = torch.randn_like(module(x.clone()))
    exact = gradient(module, x, g)
    with activations.attach(module, 4, least=1) as handle:
        found = torch.stack([gradient(module, x, g) for _ in range(SEEDS)])
        assert handle.report().nbytes < handle.report().saved_nbytes
    noise = float(found.var(0).sum()) / SEEDS
    off = float((found.mean(0) - exact).square().sum())
    return float(max(0.0, off - 2 * noise) ** 0.5 / float(exact.norm()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("module", ELEMENTWISE, ids=str)
def test_slopes_are_without_bias_at_any_scale(module: nn.Module, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    for scale in (0.1, 1.0, 10.0):
        x = (scale * torch.randn(40, 96)).to(dtype)
        assert bias(module, x) < 0.01, scale
    x = (torch.randn(40, 96) * 10 ** (2 * torch.rand(96) - 1)).to(dtype)
    assert bias(module, x) < 0.01


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("module", EXACT, ids=str)
def test_two_slopes_are_exact_at_and_beside_the_bounds(
    module: nn.Module, dtype: torch.dtype
) -> None:
    bounds = torch.tensor([-3.0, -0.3, 0.0, 0.7, 3.0, 6.0]).to(dtype)
    up, down = (torch.nextafter(bounds, bounds.new_tensor(way)) for way in (9.0, -9.0))
    x = torch.cat([bounds, up, down, torch.randn(5000).to(dtype), bounds * 1000])
    exact = gradient(module, x, torch.ones_like(x))
    with activations.attach(module, 4, least=1) as handle:
        assert torch.equal(gradient(module, x, torch.ones_like(x)), exact)
        assert handle.report().nbytes <= x.numel() // 8 + 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("norm", "shape"), NORMS, ids=lambda each: str(each)[:24])
def test_norms_stand_channels_of_any_scale_far_from_zero(
    norm: nn.Module, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(2)
    norm = norm.to(dtype)
    channels = [1, shape[1]] + [1] * (len(shape) - 2)
    rows = isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    size = (shape[0], 1) if rows else channels
    spread = 10 ** (2 * torch.rand(size) - 1)
    x = (spread * (torch.randn(shape) + 1)).to(dtype)
    assert bias(norm, x) < 0.02
    norm.to(torch.float32)


def test_slopes_without_bounds_are_left() -> None:
    module, x = nn.CELU(-0.5), torch.randn(99, 64)
    exact = gradient(module, x, torch.ones_like(x))
    with activations.attach(module, 4, least=1):
        assert torch.equal(gradient(module, x, torch.ones_like(x)), exact)


def test_few_entries_per_mean_are_exact() -> None:
    for norm, shape in (
        (nn.BatchNorm1d(8192), (4, 8192)),
        (nn.LayerNorm(4), (2048, 4)),
        (nn.GroupNorm(64, 64), (128, 64, 2)),
        (nn.InstanceNorm1d(64), (128, 64, 4)),
    ):
        x, g = 3 + torch.randn(shape), torch.randn(shape)
        exact = gradient(norm, x, g)
        with activations.attach(norm):
            assert torch.equal(gradient(norm, x, g), exact)


def test_no_class_of_the_table_is_forgotten() -> None:
    tried = {type(each) for each in (*ELEMENTWISE, *EXACT, *(norm for norm, _ in NORMS))}
    wanted = {kind for kind, reads in TABLE.items() if not isinstance(reads, Reads)}
    wanted |= {kind for kind, reads in TABLE.items() if reads is Reads.NORMED}
    assert wanted - tried == {nn.SyncBatchNorm}, "it takes two processes"


def test_negative_views_and_huge_values_are_left() -> None:
    first, second = nn.Linear(64, 8), nn.Linear(64, 8)
    model, z = nn.ModuleList([first, second]), torch.randn(128, 64, dtype=torch.complex64)
    activations.attach(model, 8)
    (first(z.imag).sum() + second(z.conj().imag).sum()).backward()
    assert second.weight.grad is not None
    torch.testing.assert_close(second.weight.grad[0], -z.imag.sum(0))
    huge = torch.full((128, 64), 1e36)
    second.zero_grad()
    (second(huge) * 1e-3).sum().backward()
    assert second.weight.grad is not None
    torch.testing.assert_close(second.weight.grad[0], 1e-3 * huge.sum(0))


def test_remove_inside_a_call_and_from_another_thread_ends_packing() -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)), torch.randn(99, 64)
    for elsewhere, which in itertools.product((False, True), range(3)):
        handle = activations.attach(model, 2, least=1)

        def end(*_: Any, handle: Any = handle, elsewhere: bool = elsewhere) -> None:
            if elsewhere:
                thread = threading.Thread(target=handle.remove)
                thread.start()
                thread.join()
            else:
                handle.remove()

        hook = model[which].register_forward_pre_hook(end)
        model(x)
        hook.remove()
        assert hooks_are_off()
        assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())


def test_an_interrupt_packs_nothing_of_other_models(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU())
    activations.attach(model, 2, least=1)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(nn.functional, "gelu", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model(torch.randn(64, 64))
    x = torch.randn(64, 64, requires_grad=True)
    y = x.exp()
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], y)


class Recursive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
        y: torch.Tensor = torch.tanh(self(self.layer(x), depth - 1)) if depth else self.layer(x)
        return y


def test_roots_may_be_nested_and_call_themselves() -> None:
    inner, x = Recursive(), torch.randn(99, 64)
    model = nn.Sequential(inner)
    activations.attach(inner.layer)
    activations.attach(model, rules={"0.layer": None, Recursive: 8})
    model(x).sum().backward()
    assert hooks_are_off()
    alone = Recursive()
    activations.attach(alone, rules={Recursive: 8})
    alone(x).sum().backward()
    assert hooks_are_off()


def test_transforms_and_dual_numbers_are_right() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4))
    x, t = torch.randn(99, 64), torch.randn(99, 64)

    def every() -> list[torch.Tensor]:
        with forward_ad.dual_level():
            dual = forward_ad.unpack_dual(model(forward_ad.make_dual(x, t))).tangent
        return [
            dual.detach(),
            torch.func.jvp(model, (x,), (t,))[1].detach(),
            torch.func.grad(lambda x: model(x).sum())(x).detach(),
            torch.func.vmap(model)(x).detach(),
            torch.func.jacfwd(model)(x[0]).detach(),
            torch.func.jacrev(model)(x[0]).detach(),
        ]

    exact = every()
    with activations.attach(model, 2, least=1):
        for found, expected in zip(every(), exact, strict=True):
            torch.testing.assert_close(found, expected)


def test_scripts_are_refused_with_the_name_of_the_package() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU())
    activations.attach(model)
    with pytest.warns(FutureWarning), pytest.raises(TypeError, match=r"gradwire.*remove\(\)"):
        torch.jit.script(model)
