"""FSDP2 inside each node, compressed averages between the nodes.

torchrun --nproc-per-node=4 examples/fsdp2.py 2    # one machine as 2 nodes of 2 ranks
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from gradwire.torch import fsdp

dist.init_process_group("gloo")
ranks_per_node = int(sys.argv[1])
nodes = dist.get_world_size() // ranks_per_node
mesh = init_device_mesh("cpu", (nodes, ranks_per_node), mesh_dim_names=("replicate", "shard"))

torch.manual_seed(0)  # the same model on every node
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.Linear(512, 10))
for layer in (model[0], model[2], model):
    fully_shard(layer, mesh=mesh["shard"])  # not mesh: FSDP would average between nodes itself
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
handle = fsdp.attach(model, optimizer=optimizer, mesh=mesh["replicate"])

random = torch.Generator().manual_seed(dist.get_rank())  # different inputs on every rank
for _ in range(30):
    inputs = torch.randn(32, 64, generator=random)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(dim=1))
    loss.backward()
    optimizer.step()

if dist.get_rank() == 0:
    print(f"loss {loss.item():.3f}\n{handle.report()}")
handle.detach()
dist.destroy_process_group()
