"""Train a small GPT on Python's own sources, with and without compression, and plot the losses.

    torchrun --nproc-per-node=2 gpt.py          # compressed; or one process: python gpt.py
    torchrun --nproc-per-node=2 gpt.py --dense  # the same without compression
    torchrun --nproc-per-node=2 gpt.py --auto   # measures, and compresses where it pays

gpt.svg plots the loss of all these runs over time, if matplotlib is installed. Two processes on
one machine have a fast link, where compression does not pay. This gives them a slow one (Linux):

    unshare -rn sh -c 'ip link set lo up; tc qdisc add dev lo root tbf rate 100mbit burst 256kb \
        limit 4mb; torchrun --nproc-per-node=2 gpt.py'
"""

import argparse
import importlib.util
import json
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradwire.torch import ddp

parser = argparse.ArgumentParser()
for each in ("compress", "dense", "auto"):
    parser.add_argument(f"--{each}", dest="mode", action="store_const", const=each)
parser.add_argument("--steps", type=int, default=1000)
mode, steps = (options := parser.parse_args()).mode or "compress", options.steps
files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
texts = [b"".join(f.read_bytes() for i, f in enumerate(files) if (i % 10 > 8) == t) for t in (0, 1)]
TRAIN, HELD_OUT = (torch.tensor(list(each[:1_500_000])).clamp(max=127) for each in texts)
WIDTH, LENGTH = 128, 64
MASK = nn.Transformer.generate_square_subsequent_mask(LENGTH)


class GPT(nn.Module):
    """Predict the next character with two transformer blocks: 0.44 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(128, WIDTH), nn.Embedding(LENGTH, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0, "gelu", 1e-5, True, True)
        self.blocks = nn.TransformerEncoder(block, 2, nn.LayerNorm(WIDTH), False)
        self.head = nn.Linear(WIDTH, 128)
        for table in (self.characters, self.places):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, text: Tensor) -> Tensor:
        """Return the logits of every next character."""
        x = self.blocks(self.characters(text) + self.places.weight, MASK)
        logits: Tensor = self.head(x)
        return logits


def loss(model: nn.Module, text: Tensor, starts: Tensor) -> Tensor:
    """Return the mean loss in windows of a text."""
    windows = text[starts[:, None] + torch.arange(LENGTH + 1)]
    return nn.functional.cross_entropy(model(windows[:, :-1]).mT, windows[:, 1:])


if dist.is_torchelastic_launched():
    dist.init_process_group("gloo")
else:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
rank, seconds, curve = dist.get_rank(), 0.0, []
torch.manual_seed(0)  # the same model on every rank
model = nn.parallel.DistributedDataParallel(GPT())
# The best rate with a codec is about twice the best without.
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3 if mode == "compress" else 2e-3)
if mode != "dense":
    handle = ddp.attach(model, "auto" if mode == "auto" else None, optimizer=optimizer)
draw = torch.Generator().manual_seed(rank)  # different windows on every rank
for step in range(steps + 1):
    if step % 50 == 0:
        with torch.no_grad():
            curve.append(
                (seconds, loss(model.module, HELD_OUT, torch.arange(0, 64_000, 500)).item())
            )
        if rank == 0:
            print(
                f"{mode}: step {step}, {seconds:.1f} s, held-out loss {curve[-1][1]:.3f}",
                flush=True,
            )
    began = time.perf_counter()
    optimizer.zero_grad()
    loss(model, TRAIN, torch.randint(len(TRAIN) - LENGTH, (8,), generator=draw)).backward()
    optimizer.step()
    seconds += time.perf_counter() - began
if rank == 0:
    if mode == "auto":
        print(handle.report().decision)
    kept = Path("gpt.json")
    curves = (json.loads(kept.read_text()) if kept.exists() else {}) | {mode: curve}
    kept.write_text(json.dumps(curves))
    if importlib.util.find_spec("matplotlib"):
        from matplotlib import pyplot

        for name, points in curves.items():
            pyplot.plot(*zip(*points, strict=True), label=name)
        pyplot.xlabel("seconds of training")
        pyplot.ylabel("held-out loss")
        pyplot.legend()
        pyplot.savefig("gpt.svg")
dist.destroy_process_group()
