"""Packed activations beside all else: checkpoints, errors, threads, forks, compilers, rules."""

import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

from gradwire.torch import activations
from gradwire.torch.activations.forms import Bits, Encoder, peak_of
from tests.torch.activations.test_attach import drawn, error, gradients, perceptron


def hooks_are_off() -> bool:
    """Whether what is saved now is kept as it is."""
    x = torch.ones(8192, requires_grad=True)
    y = x.exp()
    (gradient,) = torch.autograd.grad(y.sum(), x)
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is None and bool(
        (gradient == y).all()
    )


def held(model: nn.Module, x: torch.Tensor) -> int:
    """Bytes that torch has allocated in a forward pass and not freed, with its graph alive."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        kept = model(x).sum()
    del kept
    return int(sum(each.self_cpu_memory_usage for each in seen.key_averages()))


def test_what_torch_holds_falls_by_what_the_report_says():
    torch.manual_seed(0)
    x = drawn(512, 64)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.Tanh())
    model(x)
    plain = held(model, x)
    with activations.attach(model) as handle:
        packed = held(model, x)
        report = handle.report()
    outside = x.nbytes  # the input is held by the test
    expected = report.saved_nbytes - outside - report.nbytes
    assert expected > 0.8 * plain
    assert plain - packed == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("reentrant", [False, True])
def test_inside_a_checkpoint_nothing_is_kept_and_gradients_are_exact(reentrant):
    """Layers within are run again in backward: to pack what they save then would gain nothing."""
    model, x = perceptron(), drawn(128, 64).requires_grad_()
    (model(x) ** 2).sum().backward()
    exact = x.grad.clone()
    x.grad = None
    with activations.attach(model) as handle:
        loss = (checkpoint(model, x, use_reentrant=reentrant) ** 2).sum()
        assert handle.report().nbytes == 0
        loss.backward()
    assert torch.equal(x.grad, exact)


def test_other_hooks_decide_what_is_kept():
    layer, x, seen = nn.Linear(64, 8), drawn(128, 64), []
    exact = gradients(layer, x)
    with activations.attach(layer) as handle:
        with saved_tensors_hooks(
            lambda each: (seen.append(each.shape), each)[1], lambda each: each
        ):
            found = gradients(layer, x)
        assert torch.equal(found, exact)
        assert x.shape in seen
        assert handle.report().modules[0].left == {"other hooks for saved tensors are on": 0}
        assert not torch.equal(gradients(layer, x), exact)


class Raising(nn.Module):
    def __init__(self, error: BaseException | None) -> None:
        super().__init__()
        self.layer, self.error = nn.Linear(64, 64), error
        self.layer.register_forward_hook(self.check)

    def check(self, *_: object) -> None:
        assert hooks_are_off(), "packing ends with the layer's own forward"
        if self.error is not None:
            raise self.error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        return y


@pytest.mark.parametrize("where", ["forward", "hook before", "hook after"])
def test_after_an_exception_in_forward_nothing_is_packed_outside(where):
    model = Raising(ArithmeticError("no") if where == "hook after" else None)
    if where == "hook before":
        model.layer.register_forward_pre_hook(lambda *_: 1 / 0)
    activations.attach(model)
    with pytest.raises((ArithmeticError, RuntimeError)):
        model(drawn(128, 63 if where == "forward" else 64))
    assert hooks_are_off()


def test_threads_pack_side_by_side():
    model, x = perceptron(), drawn(128, 64)
    exact = gradients(model, x)
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        failed = 0.0
        for _ in range(10):
            made = torch.autograd.grad((model(x) ** 2).sum(), list(model.parameters()))
            failed = max(failed, error(torch.cat([each.flatten() for each in made]), exact))
        found[number] = failed, hooks_are_off()

    with activations.attach(model, 8):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 4
    for worst, off in found.values():
        assert 0.0 < worst < 0.01
        assert off


def test_a_compiler_is_refused_with_the_reason():
    model = perceptron()
    with pytest.raises(TypeError, match="compiled model: its backward pass unpacks all"):
        activations.attach(torch.compile(model, backend="eager"))
    compiled = perceptron()
    compiled[0].compile(backend="eager")
    with pytest.raises(TypeError, match="compiled model: its backward pass unpacks all"):
        activations.attach(compiled)
    call, x = torch.compile(model, backend="eager"), drawn(128, 64)
    call(x)  # what was compiled before is compiled again
    with (
        activations.attach(model),
        pytest.raises(RuntimeError, match="compiled model: its backward pass unpacks all"),
    ):
        call(x)
    call(x)
    torch._dynamo.reset()


def test_the_first_rule_that_fits_a_module_counts():
    model = nn.ModuleDict(
        {"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), "c": nn.GELU(), "d": nn.Linear(4, 4)}
    )
    with activations.attach(model, 3, rules={"a": 8, "[ab]": None, nn.Linear: 2}) as handle:
        report = handle.report()
    assert {each.name: each.bits for each in report.modules} == {"a": 8, "c": 3, "d": 2}
    assert report.left == {"b": "the rules say so"}


class Squared(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * x


def test_a_class_in_the_rules_is_added_to_the_table():
    model, x = nn.Sequential(nn.Linear(64, 64), Squared(), nn.Softmax(-1)), drawn(128, 64)
    with activations.attach(model) as handle:
        assert handle.report().left == {
            "1": "its class is not known to tolerate noise",
            "2": "its class is not known to tolerate noise",
        }
    with activations.attach(model, rules={Squared: 8}) as handle:
        model(x)
        report = handle.report()
    assert [each.name for each in report.modules] == ["0", "1"]
    assert report.modules[1].nbytes < 0.28 * report.modules[1].saved_nbytes


def test_a_forward_of_one_s_own_is_not_known():
    class Odd(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).exp()

    class Named(nn.Linear):
        pass

    model = nn.Sequential(Odd(4, 4), Named(4, 4))
    report = activations.attach(model).report()
    assert [each.name for each in report.modules] == ["1"]
    assert report.left == {"0": "it overrides the forward() of Linear"}


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"bits": 9}, ValueError, "bits"),
        ({"block": 0}, ValueError, "block"),
        ({"least": 0}, ValueError, "least"),
        ({"seed": -1}, ValueError, "seed"),
        ({"rules": {"nothing": 4}}, ValueError, "no module is called 'nothing'"),
        ({"rules": {"0": 9}}, ValueError, "the bits of '0'"),
        ({"rules": {nn.Conv2d: 4}}, ValueError, "no module is a Conv2d"),
        ({"rules": {"2": 4}}, ValueError, "give its class as a key"),
        ({"rules": {"*": None, "0": 4}}, ValueError, "no module that '0' matches first"),
        ({"rules": {"*": None}}, ValueError, "no module whose saved tensors are packed"),
    ],
)
def test_wrong_arguments_are_refused_and_attach_nothing(arguments, kind, text):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Softmax(-1))
    with pytest.raises(kind, match=text):
        activations.attach(model, **arguments)
    assert not any(each._forward_pre_hooks for each in model.modules())


def test_packing_twice_is_refused_until_the_first_ends():
    model = perceptron()
    handle = activations.attach(model)
    for again in (model, nn.Sequential(model), model[0]):
        with pytest.raises(ValueError, match="already packed"):
            activations.attach(again)
    handle.remove()
    handle.remove()
    activations.attach(model).remove()
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())


def test_the_report_is_of_the_last_pass_with_gradients_and_prints_a_table():
    model, x = nn.Sequential(perceptron(), nn.Softmax(-1)), drawn(128, 64)
    handle = activations.attach(model)
    assert handle.report().saved_nbytes == 0
    model(x)
    first = handle.report()
    with torch.no_grad():
        model(x)
    assert handle.report() == first
    model(x)
    assert handle.report().saved_nbytes == first.saved_nbytes
    text = str(first)
    assert "0.1   LayerNorm" in text
    assert "not packed: 1: its class is not known to tolerate noise" in text
    assert f"take {first.packed_share:.1%}" in text
    assert 0.14 < first.packed_share < 0.165


@pytest.mark.parametrize("bits", [1, 3, 4, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_operators_of_torch_keep_what_the_kernels_keep(bits, dtype):
    x = (drawn(10_001) * 3).to(dtype)
    made = Encoder(bits, 64, 5, iter([17])).encode(x)
    other = Encoder(bits, 64, 5, iter([])).by_operators(x, peak_of(x), 17)
    assert torch.equal(made.values(), other.values())
    assert other.values().dtype is dtype
    assert made.nbytes == other.nbytes + 56


def test_operators_of_torch_keep_the_same_bits(monkeypatch):
    chosen = drawn(1003) > 0
    first = Bits(chosen, (0.0, 2.0), torch.float32)
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    second = Bits(chosen, (0.0, 2.0), torch.float32)
    assert torch.equal(first._bits, second._bits)
    assert torch.equal(second.values(), 2.0 * chosen)
    assert torch.equal(Bits(chosen, (0.0, 1.0), torch.bool).values(), chosen)
