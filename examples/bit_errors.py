"""Train a network that tolerates bit errors in its 8-bit weights, compared with one that does not.

    python examples/bit_errors.py

Prints the % of wrong answers on scikit-learn's digits by error rate, averaged over 10 patterns.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.func import functional_call

from gradwire.quantize import Affine
from gradwire.weights import flip, pack

digits, labels = map(torch.tensor, load_digits(return_X_y=True))
order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
(u, x), (v, y) = (each[order].split([500, 1297]) for each in (digits, labels))
x, u = x.view(-1, 1, 8, 8).float() / 16, u.view(-1, 1, 8, 8).float() / 16
GRID, RATES = Affine(8, None, fit="range"), (0.0, 0.005, 0.01, 0.025)


def outputs(model: nn.Module, x: torch.Tensor, rate: float, seed: int) -> torch.Tensor:
    """Compute with 8-bit weights and bit errors; gradients go to the weights themselves."""
    read: dict[str, torch.Tensor] = dict(model.named_parameters())
    for i, (name, weight) in enumerate(model.named_parameters()):
        if weight.ndim > 1:
            values = flip(pack(weight.detach().numpy(), GRID), rate, seed + i).unpack()
            read[name] = weight + (torch.from_numpy(values) - weight).detach()
    logits: torch.Tensor = functional_call(model, read, (x,))
    return logits


print("% of bits flipped" + "".join(f"{100 * rate:8}" for rate in RATES))
for name, clip, rate in (("plain", 1e9, 0.0), ("clipped", 0.2, 0.0), ("and flipped", 0.2, 0.02)):
    torch.manual_seed(0)
    model = nn.Sequential()
    for before, width in ((1, 16), (16, 32), (32, 64)):
        convolution = nn.Conv2d(before, width, 3, 1 + (before > 1), 1, bias=False)
        model.extend([convolution, nn.GroupNorm(8, width), nn.ReLU()])
    model.extend([nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 10)])
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, 300)
    batches = (each for _ in range(15) for each in torch.randperm(len(x)).split(64)[:20])
    for step, batch in enumerate(batches):
        loss = nn.functional.cross_entropy(outputs(model, x[batch], 0.0, 0), y[batch])
        if rate and loss < 1.75:
            logits = outputs(model, x[batch], rate, 1000 + 20 * step)
            loss = (loss + nn.functional.cross_entropy(logits, y[batch])) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.data.clamp_(-clip, clip)
    wrong = [[outputs(model, u, each, 20 * i).argmax(1) != v for i in range(10)] for each in RATES]
    means = (100 * float(torch.stack(each).float().mean()) for each in wrong)
    print(f"{name:17}" + "".join(f"{mean:8.2f}" for mean in means), flush=True)
