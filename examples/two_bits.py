"""Train a network with 2-bit weights and activations, using SAWB and PACT+, and pack it.

python examples/two_bits.py FOLDER     # the four files of Fashion-MNIST, packed with gzip
python examples/two_bits.py            # scikit-learn's digits
"""

import gzip
import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from gradwire.quantize import Affine
from gradwire.torch import activations, weights

# As in the papers, the first layer has 8 bits. One clip per tensor.
RULES = {"0.*": Affine(8, None), "[36].*": Affine(2, None, fit="sawb")}
if len(sys.argv) > 1:
    parts = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    places = (Path(sys.argv[1]) / f"{each}-ubyte.gz" for each in parts)
    files = [gzip.decompress(place.read_bytes()) for place in places]
    x, y, u, v = (torch.tensor(np.frombuffer(each, np.uint8)[8:]) for each in files)
    x, u = x[8:].view(-1, 1, 28, 28) / 255, u[8:].view(-1, 1, 28, 28) / 255
else:
    digits, labels = map(torch.tensor, load_digits(return_X_y=True))
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))
    (u, x), (v, y) = (each[order].split([500, 1297]) for each in (digits, labels))
    x, u = x.view(-1, 1, 8, 8).float() / 16, u.view(-1, 1, 8, 8).float() / 16
EPOCHS, STEPS = 4 if len(x) > 2000 else 15, len(x) // 64


def accuracy(model: nn.Module) -> float:
    """Return the percentage of right answers on held-out images."""
    return 100 * float((model.eval()(u).argmax(1) == v).float().mean())


for name, bits in (("float", 0), ("2 bits", 2)):
    torch.manual_seed(0)
    model = nn.Sequential()
    for before, width in ((1, 16), (16, 32), (32, 64)):
        convolution = nn.Conv2d(before, width, 3, 1 + (before > 1 or len(x) > 2000), 1, bias=False)
        act = activations.PACT(bits, clip=4.0) if bits else nn.ReLU()
        model.extend([convolution, nn.BatchNorm2d(width), act])
    model.extend([nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 10)])
    if bits:
        weights.straight_through(model, RULES)
    optimizer = torch.optim.AdamW(activations.parameter_groups(model, 1e-2))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, EPOCHS * STEPS)
    for batch in (each for _ in range(EPOCHS) for each in torch.randperm(len(x)).split(64)[:STEPS]):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch].long()).backward()
        optimizer.step()
        schedule.step()
    print(f"{name}: {accuracy(model):.1f} %", flush=True)
print(weights.pack(model, RULES))
print(f"packed: {accuracy(model):.1f} %")
