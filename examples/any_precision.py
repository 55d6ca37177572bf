"""Train one network for 8, 4 and 2 bits, write one file, and read it at each precision.

The file stores each weight as 4 bits and 4 further bits, which a 4-bit reader skips. A 2-bit reader
rounds the 4-bit codes: it keeps their 2 highest bits.
"""

import tempfile

import torch
from sklearn.datasets import load_digits
from torch import nn

import gradwire.weights
from gradwire.quantize import Affine
from gradwire.torch import weights

x, y = map(torch.tensor, load_digits(return_X_y=True))
order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
x, y = x[order].float() / 8 - 1, y[order]
GRIDS = {bits: Affine(bits, 64, fit="range") for bits in (8, 4, 2)}  # cells within cells


def accuracy(model: nn.Module) -> float:
    """Return the percentage of right answers on held-out digits."""
    return 100 * float((model(x[:500]).argmax(1) == y[:500]).float().mean())


def train(*precisions: int) -> nn.Sequential:
    """Return a network trained at several precisions at once."""
    torch.manual_seed(0)
    model = nn.Sequential()
    for width in (64, 128):
        model.extend([nn.Linear(width, 128), nn.LayerNorm(128), nn.ReLU()])
    optimizer = torch.optim.AdamW(model.append(nn.Linear(128, 10)).parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, 400)
    for _ in range(400):
        optimizer.zero_grad()
        batch = torch.randint(500, len(x), (64,))
        for bits in precisions:
            with weights.straight_through(model, {"*": GRIDS[bits]}):
                nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
        schedule.step()
    return model


file, model = tempfile.mkdtemp() + "/any.safetensors", train(8, 4, 2)
weights.pack(model, {"*": GRIDS[4]}, more=(4,))
weights.save(model, file)
for bits in GRIDS:
    model, alone = train(), train(bits)
    weights.load(file, model, bits=max(bits, 4))
    if bits == 2:
        for i, layer in enumerate(model):
            if isinstance(layer, weights.PackedLinear):
                two = gradwire.weights.pack(layer.packed.unpack(), GRIDS[2])
                model[i] = weights.PackedLinear(two, layer.bias)
    weights.pack(alone, {"*": GRIDS[bits]})
    print(f"{bits} bits: {accuracy(model):.1f} %, alone {accuracy(alone):.1f} %", flush=True)
