"""Round a network to 4-bit weights and activations, with and without outliers in training.

    python examples/w4a4.py

Some rows of this network start large, and their outputs are outliers: 4-bit steps that cover them
are too coarse for the rest. A penalty on the kurtosis of outputs removes them.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from gradwire.quantize import Affine
from gradwire.torch import activations, weights

x, y = map(torch.tensor, load_digits(return_X_y=True))
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
x, y, HELD_OUT = x[order].float() / 8 - 1, y[order], 500


def accuracy(model: nn.Module) -> float:
    """Return the percentage of right answers on held-out digits."""
    return 100 * float((model.eval()(x[:HELD_OUT]).argmax(1) == y[:HELD_OUT]).float().mean())


for weight in (None, 3e-3):
    torch.manual_seed(0)
    model = nn.Sequential()
    for before, width in ((64, 128), (128, 128), (128, 128)):
        layer = nn.Linear(before, width)
        nn.init.normal_(layer.weight[:4], std=1.2)
        model.extend([layer, nn.ReLU()])
    model.append(nn.Linear(128, 10))
    penalty = activations.KurtosisPenalty(model, weight) if weight else None
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, 400)
    for _ in range(400):
        optimizer.zero_grad()
        batch = torch.randint(HELD_OUT, len(x), (64,))
        loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
        (loss + penalty.penalty() if penalty else loss).backward()
        optimizer.step()
        schedule.step()
    if penalty:
        penalty.remove()
    outputs = model[:3](x[:HELD_OUT]).detach()
    kurtosis = float(((outputs - outputs.mean()) / outputs.std()).pow(4).mean())
    print(f"penalty {weight}: kurtosis {kurtosis:.1f}, float {accuracy(model):.1f} %", flush=True)
    for i in (1, 3, 5):
        model[i] = activations.PACT(4, 100, clip_by="percentile")  # the range of a batch
    model.train()(x[HELD_OUT:])
    weights.pack(model, {"*": Affine(4, 64)})
    print(f"in 4 bits: {accuracy(model):.1f} %", flush=True)
