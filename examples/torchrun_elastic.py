"""Continue when ranks are lost: from the last checkpoint, even with a different number of ranks.

torchrun --nproc-per-node=3 --max-restarts=3 examples/torchrun_elastic.py run/ 200
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import load, save, state_dict

from gradwire.torch import ddp

folder, steps, first = Path(sys.argv[1]), int(sys.argv[2]), 0
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
model = nn.parallel.DistributedDataParallel(layers)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = ddp.attach(model, optimizer=optimizer)
if found := sorted(folder.glob("*/.metadata")):  # written last: the checkpoint is complete
    first, old_size = map(int, found[-1].parent.name.split("-of-"))
    moments = state_dict.get_optimizer_state_dict(model, optimizer)
    state = {"model": layers.state_dict(), "gradwire": handle.resharded(old_size)}
    load(state | {"optimizer": moments}, checkpoint_id=found[-1].parent)
    loose = state_dict.StateDictOptions(strict=False)  # the codec has most of the moments
    state_dict.set_optimizer_state_dict(model, optimizer, moments, options=loose)
for step in range(first, steps):
    inputs = torch.randn(32, 64, generator=torch.Generator().manual_seed(99 * step + rank))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1)).backward()
    optimizer.step()
    if (step + 1) % 10 == 0:
        moments = state_dict.get_optimizer_state_dict(model, optimizer)
        state = {"model": layers.state_dict(), "gradwire": handle, "optimizer": moments}
        save(state, checkpoint_id=folder / f"{step + 1:06d}-of-{size}")
print(f"rank {rank} of {size}: steps {first} to {steps}", flush=True)
