"""Experts that fine-tuning has not needed are found by their routers."""

import pytest
import torch

from gradwire.torch.weights import expert_change


def test_planted_experts_have_the_largest_change():
    generator = torch.Generator().manual_seed(0)
    before = torch.randn(8, 32, generator=generator)
    after = before + 0.01 * torch.randn(8, 32, generator=generator)
    after[[2, 5]] *= 1.2
    after[3] *= 0.8  # it moved as far, and is needed less
    scores = expert_change(before, after)
    assert set(scores.topk(2).indices.tolist()) == {2, 5}
    assert int(scores.argmin()) == 3
    expected = after.double().norm(dim=1) - before.double().norm(dim=1)
    torch.testing.assert_close(scores.double(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_scores_are_of_float32_at_least(dtype):
    router = torch.full((2, 300), 0.1, dtype=dtype)
    scores = expert_change(router, 2 * router)
    assert scores.dtype is (torch.float64 if dtype is torch.float64 else torch.float32)
    torch.testing.assert_close(scores.double(), router.double().norm(dim=1), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("before", "after", "error", "said"),
    [
        ([[1.0]], torch.ones(1, 1), TypeError, "before must be a tensor of floats, got list"),
        (torch.ones(2, 2), torch.ones(2, 2).int(), TypeError, "after must be .* torch.int32"),
        (torch.ones(2), torch.ones(2), ValueError, r"of shape \(experts, width\), got \(2,\)"),
        (torch.ones(3, 2), torch.ones(2, 2), ValueError, r"got \(3, 2\) and \(2, 2\)"),
    ],
)
def test_what_is_no_router_is_refused(before, after, error, said):
    with pytest.raises(error, match=said):
        expert_change(before, after)
