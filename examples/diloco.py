"""Train one model on several sites with DiLoCo: few, small exchanges over a slow network.

    torchrun --nproc-per-node=2 examples/diloco.py
    unshare -rn sh -c 'ip link set lo up; tc qdisc add dev lo root tbf rate 100mbit burst 256kb \
        limit 4mb; torchrun --nproc-per-node=2 examples/diloco.py'
The second uses a slow link (Linux). Between sites, add --nnodes, --node-rank, --master-addr.
"""

import torch
import torch.distributed as dist
from torch import nn

import gradwire
from gradwire.torch import diloco

dist.init_process_group("gloo")
rank = dist.get_rank()
model = nn.Sequential(
    nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)  # each site has its own
draw = torch.Generator().manual_seed(rank)
centres = torch.randn(10, 64, generator=torch.Generator().manual_seed(1))

# The optimizer's step() exchanges every 20 steps. The training loop does not change.
with diloco.DiLoCo(model, gradwire.sparseloco(), optimizer=optimizer, inner_steps=20) as outer:
    for step in range(200):
        targets = torch.randint(10, (64,), generator=draw)
        inputs = centres[targets] + 4.0 * torch.randn(64, 64, generator=draw)
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 50 == 49:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)
    with outer.shared():  # the parameters that all sites share
        if rank == 0:
            torch.save(model.state_dict(), "model.pt")
            print(outer.report(), flush=True)
dist.destroy_process_group()
