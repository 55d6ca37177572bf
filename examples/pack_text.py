"""Train a small transformer on Python's sources (minutes; --quick: seconds), and pack it."""

import copy
import sys
import sysconfig
from pathlib import Path

import torch
from torch import nn

from gradwire.quantize import Affine
from gradwire.torch import weights

STEPS, WINDOWS = (60, 64) if "--quick" in sys.argv else (2400, 1024)
KEPT, FILES = Path(f"text-{STEPS}.pt"), sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
TEXT = [b"".join(f.read_bytes() for i, f in enumerate(FILES) if (i % 10 > 8) == h) for h in (0, 1)]
TRAIN, TEST = (torch.tensor(list(part[:1_500_000])).clamp(max=127) for part in TEXT)
MASK = nn.Transformer.generate_square_subsequent_mask(64)
ANGLES = torch.arange(64)[:, None] / 100 ** torch.linspace(0, 1, 64)
PLACES = torch.cat([ANGLES.sin(), ANGLES.cos()], dim=1)


def run(model: nn.Module, text: torch.Tensor, starts: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the loss of predictions in windows, and the percentage of right ones."""
    found = text[starts[:, None] + torch.arange(65)]
    logits = model(found[:, :-1]).transpose(1, 2)
    right = 100 * (logits.argmax(1) == found[:, 1:]).float().mean()
    return nn.functional.cross_entropy(logits, found[:, 1:]), right


torch.manual_seed(0)
draw = torch.randint(len(TRAIN) - 65, (STEPS + 32, 16))
blocks = [nn.TransformerEncoderLayer(128, 4, 512, 0, "gelu", 1e-5, True, True) for _ in range(2)]
for block in blocks:
    block.register_forward_pre_hook(lambda _, inputs: (*inputs, MASK))
model = nn.Sequential(nn.Embedding(128, 128), *blocks, nn.LayerNorm(128), nn.Linear(128, 128))
model[0].register_forward_hook(lambda _, inputs, vectors: vectors + PLACES)
if not KEPT.exists():
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, STEPS, pct_start=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        run(model, TRAIN, draw[step])[0].backward()
        optimizer.step()
        schedule.step()
        print(f"training: step {step + 1} of {STEPS}", end="\r", flush=True)
    torch.save(model.state_dict(), KEPT)
model.load_state_dict(torch.load(KEPT))
torch.set_grad_enabled(False)
rules, packed = {"0.*": None, "*": Affine(4, 64, "range")}, copy.deepcopy(model.eval())
weights.pack(nearest := copy.deepcopy(model), rules)
with weights.Calibration(packed, sequential=True) as seen:
    for starts in draw[STEPS:]:
        run(packed, TRAIN, starts)
report = weights.pack(packed, rules, calibration=seen)
size = f"{len(report.tensors)} layers, {report.bits_per_weight:.1f} bits a weight with scales"
print(f"calibrated on 32 batches; {size}")
starts = torch.linspace(0, len(TEST) - 66, WINDOWS).long()
(a, _), (b, _), (c, right) = (run(each, TEST, starts) for each in (model, nearest, packed))
print(f"loss: float {a:.3f}   nearest 4 bits {b:.3f}   packed {c:.3f}   accuracy {right:.1f} %")
