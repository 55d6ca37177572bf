"""The optimizer that leaves momentum to the codec."""

import copy

import numpy as np
import pytest
import torch
from torch.optim import SGD

import gradwire
import gradwire.torch
from gradwire.memory import MomentumCorrection
from gradwire.sparsify import TopK
from gradwire.torch.optim import adapt

STEPS, N = 20, 40


def gradients() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(N, generator=generator) for _ in range(STEPS)]


def computed(parameter: torch.Tensor) -> list[dict[str, object]]:
    """A group whose gradients a codec has applied momentum to."""
    return [{"params": [parameter], "corrected": True}]


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_with_a_codec_that_sends_all_it_is_plain_momentum(nesterov, weight_decay):
    memory = MomentumCorrection(momentum=0.8, nesterov=nesterov, masking=False)
    codec = gradwire.Codec(sparsify=TopK(ratio=1.0), memory=memory)
    state = codec.init_state(N)
    options = {"lr": 0.1, "momentum": 0.8, "weight_decay": weight_decay, "nesterov": nesterov}
    ours, theirs = (torch.ones(N, requires_grad=True) for _ in range(2))
    corrected, plain = adapt(SGD(computed(ours), **options)), SGD([theirs], **options)
    for gradient in gradients():
        ours.grad = gradwire.torch.decode(gradwire.torch.encode(codec, gradient, state))
        theirs.grad = gradient.clone()
        corrected.step()
        plain.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_applies_to_weight_decay_alone(nesterov):
    parameter = torch.ones(N, requires_grad=True)
    optimizer = SGD(computed(parameter), lr=0.1, momentum=0.9, weight_decay=0.2, nesterov=nesterov)
    adapt(optimizer)
    w, buffer = np.ones(N), np.zeros(N)
    for gradient in gradients():
        parameter.grad = gradient.clone()
        optimizer.step()
        decay = 0.2 * w
        buffer = 0.9 * buffer + decay
        w = w - 0.1 * (gradient.double().numpy() + (decay + 0.9 * buffer if nesterov else buffer))
        assert np.allclose(parameter.detach().numpy(), w, atol=1e-5)


def test_a_saved_optimizer_goes_on():
    parameter = torch.ones(N, requires_grad=True)
    optimizer = adapt(SGD(computed(parameter), lr=0.1, momentum=0.9, weight_decay=0.1))
    parameter.grad = torch.ones(N)
    optimizer.step()
    other = parameter.detach().clone().requires_grad_()
    again = adapt(SGD(computed(other), lr=0.5))
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    other.grad = torch.ones(N)
    assert optimizer.step(lambda: 3.0) == 3.0
    again.step()
    assert torch.equal(parameter, other)
