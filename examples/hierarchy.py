"""Compress between nodes only; inside a node, gradients are summed uncompressed.

torchrun --nnodes=2 --nproc-per-node=8 ... examples/hierarchy.py    # on each of two machines
torchrun --nproc-per-node=4 examples/hierarchy.py 2                 # one machine as 2 nodes of 2
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.torch import ddp

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)  # the same model on every rank
model = DistributedDataParallel(
    nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
hierarchy = int(sys.argv[1]) if len(sys.argv) > 1 else "node"  # ranks per node, or as torchrun says
handle = ddp.attach(model, optimizer=optimizer, hierarchy=hierarchy)

random = torch.Generator().manual_seed(rank)  # different inputs on every rank
for _ in range(30):
    inputs = torch.randn(32, 64, generator=random)
    targets = inputs[:, :10].argmax(dim=1)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()

if rank == 0:
    print(f"loss {loss.item():.3f}\n{handle.report()}")
handle.detach()
dist.destroy_process_group()
