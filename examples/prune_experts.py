"""Prune experts that fine-tuning did not need, judged by the change of their routers.

python examples/prune_experts.py
"""

import copy

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from gradwire.torch import weights

EXPERTS, KEPT, STEPS = 8, 4, 400
x, y = map(torch.tensor, load_digits(return_X_y=True))
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
x, y = x[order].float() / 8 - 1, y[order]


class Mixture(nn.Module):
    """A router picks two of the experts for each digit."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(64, EXPERTS, bias=False)
        networks = [(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)) for _ in range(EXPERTS)]
        self.experts = nn.ModuleList(nn.Sequential(*each) for each in networks)

    def forward(self, x: Tensor) -> Tensor:
        """Return the weighted sum of the two best experts."""
        best, chosen = self.router(x).topk(2)
        shares = torch.zeros(len(x), len(self.experts)).scatter(1, chosen, best.softmax(1))
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        return (shares[:, :, None] * outputs).sum(1)


def train(model: Mixture, x: Tensor, y: Tensor) -> None:
    """Train on some digits."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(STEPS):
        batch = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()


torch.manual_seed(0)
model = Mixture()
train(model, x[500:], y[500:])
before = model.router.weight.detach().clone()
few, held_out = y[500:] < 3, y[:500] < 3
train(model, x[500:][few], y[500:][few])  # of ten digits, three are needed from now on
scores = weights.expert_change(before, model.router.weight)
print("change of router rows:", " ".join(f"{score:+.2f}" for score in scores))
for name, kept in (("least", scores.topk(KEPT)), ("most", (-scores).topk(KEPT))):
    pruned = copy.deepcopy(model)
    pruned.router.weight = nn.Parameter(model.router.weight[kept.indices])
    pruned.experts = nn.ModuleList(pruned.experts[i] for i in kept.indices)
    right = pruned(x[:500][held_out]).argmax(1) == y[:500][held_out]
    print(f"without the {EXPERTS - KEPT} of {name} change: {100 * right.float().mean():.1f} %")
