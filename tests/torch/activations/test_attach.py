"""Activations packed between forward and backward: what is kept, and what gradients become."""

import copy
import io
import math

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from gradwire.quantize import Affine
from gradwire.torch import activations, weights

BITS_PER_VALUE = 4 + 32 / 64
FRAME = 56


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def perceptron(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 64), nn.Linear(64, 8)
    )


def gradients(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    (model(x) ** 2).sum().backward()
    return torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found - exact).norm() / exact.norm())


def test_forward_is_exact_and_gradients_are_near():
    model, x = perceptron(), drawn(128, 64)
    exact = gradients(model, x)
    expected, errors = model(x), {}
    for bits in (8, 4, 2):
        with activations.attach(model, bits):
            assert torch.equal(model(x), expected)
            errors[bits] = error(gradients(model, x), exact)
    assert 0.0 < errors[8] < 0.01 < errors[4] < 0.15 < errors[2] < 1.0
    assert torch.equal(gradients(model, x), exact), "packing has ended"


def test_the_error_of_the_mean_over_seeds_falls_as_one_over_their_root():
    """A linear layer after another: gradients of weights are linear in the inputs that are kept."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8))
    x, y = drawn(128, 64), drawn(128, 8, seed=1)

    def gradient() -> torch.Tensor:
        model.zero_grad()
        (model(x) * y).sum().backward()
        return torch.cat([each.weight.grad.flatten() for each in model])

    exact = gradient()
    found = []
    for seed in range(64):
        with activations.attach(model, 2, seed=seed):
            found.append(gradient())
    each = torch.stack(found)
    one = float((each - exact).norm(dim=1).mean())
    for seeds in (4, 16, 64):
        mean = float((each.view(-1, seeds, len(exact)).mean(1) - exact).norm(dim=1).mean())
        assert mean == pytest.approx(one / math.sqrt(seeds), rel=0.15)


def test_passes_draw_other_numbers_and_a_seed_repeats_them():
    model, x = perceptron(), drawn(128, 64)

    def two(seed: int) -> list[torch.Tensor]:
        with activations.attach(model, 2, seed=seed):
            return [gradients(model, x) for _ in range(2)]

    first, again, other = two(5), two(5), two(6)
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])


@pytest.mark.parametrize(
    "module",
    [
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Dropout(0.3, inplace=True),
        nn.MaxPool2d(2),
        nn.AvgPool2d(3, 2),
        nn.AdaptiveAvgPool2d(3),
        nn.AdaptiveMaxPool2d(3),
    ],
    ids=str,
)
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_what_needs_no_values_is_exact_at_any_number_of_bits(module, order):
    given = (4 * drawn(4, 8, 16, 16)).contiguous(memory_format=order)
    given[0, 0, 0, :4] = torch.tensor([0.0, 6.0, -0.5, 0.25])
    found = []
    for attached in (False, True):
        if attached:
            handle = activations.attach(module, bits=1, least=1)
        torch.manual_seed(3)
        x = given.clone().requires_grad_()
        y = module(x * 1.0)
        (y * drawn(*y.shape, seed=7)).sum().backward()
        found.append(x.grad)
    report = handle.report()
    handle.remove()
    assert torch.equal(*found)
    floats = report.saved_nbytes - report.left_nbytes
    assert report.nbytes - report.left_nbytes <= floats / 32
    assert set(report.modules[0].left) <= {"int64"}


def test_a_slice_is_packed_as_if_it_had_memory_of_its_own():
    layer, whole = nn.Linear(64, 8), drawn(128, 100)
    x = whole[:, 10:74]
    exact = gradients(layer, x)
    with activations.attach(layer, 8) as handle:
        assert 0.0 < error(gradients(layer, x), exact) < 0.02
    assert handle.report().saved_nbytes == x.numel() * 4


CASES: dict[nn.Module, tuple[int, ...]] = {
    nn.Conv1d(8, 4, 3): (16, 8, 64),
    nn.Conv2d(8, 8, 3): (4, 8, 16, 16),
    nn.ConvTranspose3d(4, 2, 3): (4, 4, 8, 8, 8),
}


@pytest.mark.parametrize("module", CASES, ids=str)
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_convolutions_stand_noise_in_any_order_of_memory(module, order):
    found = []
    for attached in (False, True):
        x = drawn(*CASES[module])
        if x.dim() == 4:
            x = x.contiguous(memory_format=order)
        x.requires_grad_()
        if attached:
            handle = activations.attach(module, 8)
        module.zero_grad()
        y = module(x * 1.0)
        (y * drawn(*y.shape, seed=3)).sum().backward()
        found.append(torch.cat([each.grad.flatten() for each in (x, *module.parameters())]))
    report = handle.report()
    handle.remove()
    assert 0.0 < error(found[1], found[0]) < 0.05
    assert report.nbytes < 0.3 * report.saved_nbytes


def test_a_tensor_that_several_layers_save_is_packed_once():
    class Parallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(64, 8), nn.Linear(64, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.first(x) + self.second(x) + self.second(x.view(-1, 64))
            return y

    model, x = Parallel(), drawn(128, 64)
    with activations.attach(model) as handle:
        y = model(x)
        report = handle.report()
        assert report.saved_nbytes == x.numel() * 4
        assert report.nbytes == x.numel() * BITS_PER_VALUE / 8 + FRAME
        y.sum().backward()
        # Of another version, and of another tensor at the same address, it is another one.
        x += 1.0
        model(x).sum().backward()
        assert handle.report().nbytes == report.nbytes
        x = x.clone()
        exact = x.sum(0)
        model.zero_grad()
        model(x).sum().backward()
    assert error(model.first.weight.grad[0], exact) < 0.1


def test_what_was_freed_is_never_taken_for_a_new_tensor():
    """Tensors follow one another at the same address while what was kept of them lives on."""
    layer, losses, given = nn.Linear(64, 8, bias=False), [], []
    with activations.attach(layer, 8):
        for i in range(20):
            x = torch.full((128, 64), float(i))
            given.append(float(i))
            losses.append(layer(x).sum())
            del x
        for value, loss in zip(given, losses, strict=True):
            layer.zero_grad()
            loss.backward()
            torch.testing.assert_close(layer.weight.grad, torch.full((8, 64), 128 * value))


def test_a_batch_that_numpy_wrote_over_the_last_one_is_another_one():
    """No version tells, and the last pass may still be alive: its loss is held."""
    layer, array = nn.Linear(64, 8, bias=False), drawn(128, 64).numpy()
    with activations.attach(layer, 8):
        last = layer(torch.from_numpy(array)).sum()
        array[:] = 7.0
        layer(torch.from_numpy(array)).sum().backward()
    torch.testing.assert_close(layer.weight.grad, torch.full((8, 64), 7.0 * 128))
    assert last.requires_grad


def test_nothing_is_kept_alive():
    model = perceptron()
    with activations.attach(model) as handle:
        hidden = model[2](model[1](model[0](drawn(128, 64))))
        y = model[4](model[3](hidden)).sum()
        memory = StorageWeakRef(hidden.untyped_storage())
        assert len(handle._origins._known) > 3
        del hidden
        assert memory.expired(), "it is packed, and its memory returns"
        del y  # and no backward
        assert len(handle._origins._known) == 0


def test_small_tensors_statistics_parameters_and_integers_are_left():
    model = nn.Sequential(nn.Embedding(100, 64), nn.LayerNorm(64), nn.Linear(64, 100))
    tokens = torch.arange(5000).view(50, 100) % 100
    with activations.attach(model, least=4096) as handle:
        model(tokens)
        embedding, norm, linear = handle.report().modules
    assert embedding.left == {"int64": tokens.nbytes}
    assert embedding.nbytes == tokens.nbytes
    assert norm.left == {"means and deviations": 2 * 5000 * 4}
    assert linear.left == {}
    assert linear.saved_nbytes == 5000 * 64 * 4
    with activations.attach(model, least=5000 * 64 + 1) as handle:
        model(tokens)
        report = handle.report()
    assert report.nbytes == report.saved_nbytes == report.left_nbytes
    assert report.packed_share == 0.0


@pytest.mark.parametrize("frozen", [False, True])
def test_a_weight_that_autocast_casts_is_left(frozen):
    """Else it would be rounded, and frozen ones have no graph that tells what they are."""
    model, x = nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 64)), drawn(256, 64)
    model[1].weight.requires_grad_(not frozen)
    kept = x.numel() * 2 + 256 * 128 * 2 * (not frozen)
    with activations.attach(model, 8, least=64) as handle, torch.autocast("cpu", torch.bfloat16):
        y = model(x)
        report = handle.report()
    assert report.saved_nbytes == kept
    model.zero_grad()
    y.float().pow(2).sum().backward()
    found = model[0].weight.grad.clone()
    with torch.autocast("cpu", torch.bfloat16):
        y = model(x)
    model.zero_grad()
    y.float().pow(2).sum().backward()
    assert error(found, model[0].weight.grad) < 0.02


def test_a_weight_that_is_rounded_in_training_is_left():
    layer, x = nn.Linear(64, 128), drawn(128, 64)
    rounding = weights.straight_through(layer, {"weight": Affine(4, 64)})
    with rounding, activations.attach(layer) as handle:
        layer(x.requires_grad_()).sum().backward()
    assert handle.report().saved_nbytes == x.numel() * 4


def test_values_that_are_not_finite_reach_the_gradient():
    layer, x = nn.Linear(64, 8), drawn(128, 64)
    for bad in (float("nan"), float("inf")):
        x[3, 5] = bad
        with activations.attach(layer) as handle:
            layer.zero_grad()
            layer(x).sum().backward()
        (row,) = handle.report().modules
        assert row.left == {"NaN or infinity": x.nbytes}
        assert torch.isfinite(layer.weight.grad).all(0).sum() == 63
        assert not torch.isfinite(layer.weight.grad[:, 5]).any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.complex128])
def test_other_numbers_are_left_as_they_are(dtype):
    layer, x = nn.Linear(64, 8, dtype=dtype), drawn(128, 64).to(dtype)
    (layer(x).abs() ** 2).sum().backward()
    exact = layer.weight.grad.clone()
    layer.zero_grad()
    with activations.attach(layer) as handle:
        (layer(x).abs() ** 2).sum().backward()
    assert torch.equal(layer.weight.grad, exact)
    (row,) = handle.report().modules
    assert row.left == {str(dtype).removeprefix("torch."): x.nbytes}


def test_sparse_and_empty_tensors_are_left_as_they_are():
    layer = nn.Linear(64, 8, bias=False)
    sparse = drawn(128, 64).relu().to_sparse()
    with activations.attach(layer) as handle:
        layer(sparse).sum().backward()
        torch.testing.assert_close(layer.weight.grad[0], sparse.to_dense().sum(0))
        assert handle.report().saved_nbytes == 0
        layer.zero_grad()
        layer(torch.zeros(0, 64)).sum().backward()
    assert torch.equal(layer.weight.grad, torch.zeros(8, 64))


def test_a_tensor_that_was_changed_in_place_is_an_error_as_without_packing():
    class Changing(nn.Module):
        def __init__(self, change: str) -> None:
            super().__init__()
            self.layer, self.change = nn.Linear(64, 64), change

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x * 1.0
            y: torch.Tensor = self.layer(x)
            if self.change == "input":
                x.add_(1.0)
            elif self.change == "view":
                x.view(-1)[:3] = 0.0
            elif self.change == "weight":
                with torch.no_grad():
                    self.layer.weight.mul_(2.0)
            return y

    for change in ("input", "view", "weight"):
        for attached in (False, True):
            model = Changing(change)
            if attached:
                activations.attach(model)
            loss = model(drawn(128, 64).requires_grad_()).sum()
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
    model = Changing("nothing")
    activations.attach(model)
    model(drawn(128, 64)).sum().backward()


def test_gradients_of_gradients_are_refused():
    model, x = perceptron(), drawn(128, 64).requires_grad_()
    handle = activations.attach(model)
    with pytest.raises(RuntimeError, match=r"create_graph=True.*remove\(\)"):
        torch.autograd.grad(model(x).sum(), x, create_graph=True)
    handle.remove()
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    gradient.sum().backward()


def test_copies_and_pickles_are_without_packing_and_their_state_is_the_same():
    model, x = perceptron(), drawn(128, 64)
    exact = gradients(model, x)
    names = list(model.state_dict())
    handle = activations.attach(model, 2)
    assert list(model.state_dict()) == names
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for copied in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert torch.equal(gradients(copied, x), exact)
        activations.attach(copied, 2)
        assert not torch.equal(gradients(copied, x), exact)
    assert not torch.equal(gradients(model, x), exact)
    handle.remove()
    assert torch.equal(gradients(model, x), exact)


def test_what_is_kept_serves_backward_after_the_end_of_packing_in_any_order():
    """As for gradients that are accumulated: all losses are alive at once."""
    model, batches = perceptron(), [drawn(128, 64, seed=i) for i in range(4)]
    exact = sum(gradients(model, x) for x in batches)
    with activations.attach(model, 8):
        losses = [(model(x) ** 2).sum() for x in batches]
    model.zero_grad()
    for loss in losses:
        loss.backward()
    found = torch.cat([each.grad.flatten() for each in model.parameters()])
    assert 0.0 < error(found, exact) < 0.01
