"""Fine-tune adapters on packed 4-bit weights, compared with the whole model in float32."""

import copy

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from gradwire.quantize import Affine
from gradwire.torch import weights

x, y = map(torch.tensor, load_digits(return_X_y=True))
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
x, y = x[order].float() / 8 - 1, y[order]
turned = x.view(-1, 8, 8).rot90(dims=(1, 2)).flatten(1)  # what the model is fine-tuned on


class Adapted(nn.Module):
    """A packed layer plus a product of two thin matrices, which starts at zero."""

    def __init__(self, layer: weights.PackedLinear, rank: int = 8) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """Multiply x by both."""
        y: Tensor = self.layer(x) + x @ self.down.t() @ self.up.t()
        return y


def train(model: nn.Module, x: Tensor, steps: int = 400) -> str:
    """Train; return the held-out accuracy, the parameters trained and the size of the model."""
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, 4e-3)
    for _ in range(steps):
        batch = torch.randint(500, len(x), (64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
    right = 100 * float((model(x[:500]).argmax(1) == y[:500]).float().mean())
    kept = sum(each.nbytes for each in model.state_dict().values())
    count = sum(each.numel() for each in trained)
    return f"{right:.1f} % right, {count:,} parameters trained, a model of {kept / 1e3:.0f} kB"


torch.manual_seed(0)
layers = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
model = nn.Sequential(*layers)
print(f"before: {train(model, x)}")
full, small = copy.deepcopy(model), copy.deepcopy(model)
print(f"full fine-tuning: {train(full, turned)}")
with weights.Calibration(small, sequential=True) as seen, torch.no_grad():
    small(x[500:])
weights.pack(small, {"*": Affine(4, 64)}, calibration=seen)
small = nn.Sequential(*(Adapted(e) if isinstance(e, weights.PackedLinear) else e for e in small))
print(f"adapters on 4 bits: {train(small, turned)}")
