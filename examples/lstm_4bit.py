"""Train a character LSTM with 4-bit weights, inputs and hidden state.

python examples/lstm_4bit.py [STEPS]    # each block has a scale, and so does each gate
"""

import sys
import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, linear

from gradwire.quantize import Affine
from gradwire.torch import activations, weights

STEPS, WIDTH, LENGTH = int(sys.argv[1]) if len(sys.argv) > 1 else 500, 96, 32
RULES = {"cell.weight*": Affine(4, 64)}
FILES = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:40]
CODES = torch.tensor(list(b"".join(file.read_bytes() for file in FILES))).clamp(max=127)
TRAIN, HELD_OUT = CODES.tensor_split([len(CODES) * 9 // 10])


class Characters(nn.Module):
    """An LSTM that reads its weights once per pass, and rounds its input and hidden state."""

    def __init__(self, rounded: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(128, WIDTH), nn.Linear(WIDTH, 128)
        self.cell = nn.LSTMCell(WIDTH, WIDTH)
        self.input = activations.PACT(4, 3.0, two_sided=True) if rounded else nn.Identity()
        self.hidden = activations.PACT(4, 0.7, two_sided=True) if rounded else nn.Identity()

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of the next characters."""
        cell, outputs, h, c = self.cell, [], torch.zeros(len(windows), WIDTH), torch.zeros(1)
        inputs, recurrent = self.input(self.embed(windows[:, :-1])), cell.weight_hh  # rounded here
        for x in linear(inputs, cell.weight_ih, cell.bias_ih).unbind(1):
            i, f, g, o = (x + linear(self.hidden(h), recurrent, cell.bias_hh)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        return cross_entropy(self.head(torch.stack(outputs, 2).mT).mT, windows[:, 1:])


for name, rounded in (("float", False), ("4 bits", True)):
    torch.manual_seed(0)
    model = Characters(rounded)
    weights.straight_through(model, RULES if rounded else {})
    optimizer = torch.optim.Adam(activations.parameter_groups(model, 0.0))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, STEPS)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(TRAIN.unfold(0, LENGTH + 1, 1)[torch.randint(len(TRAIN) - LENGTH, (32,))]).backward()
        optimizer.step()
        schedule.step()
    held_out = HELD_OUT.unfold(0, LENGTH + 1, LENGTH)[:500]
    print(f"{name}: loss {model(held_out).item():.4f}", flush=True)
weights.pack(model, RULES)
print(f"packed: loss {model(held_out).item():.4f}")
