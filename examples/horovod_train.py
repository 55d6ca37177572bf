"""Train a small model with Horovod and compressed gradients.

horovodrun -np 2 --gloo python examples/horovod_train.py
"""

import horovod.torch as hvd
import torch
from torch import nn, optim

from gradwire.torch import horovod

hvd.init()
torch.manual_seed(hvd.rank())
model = nn.Sequential(
    nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
)
optimizer = optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)

# This is all that compression needs: with Horovod's own, it is hvd.DistributedOptimizer(...).
optimizer = horovod.DistributedOptimizer(optimizer, model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)

centres = torch.randn(10, 64, generator=torch.Generator().manual_seed(1))
for step in range(1, 101):
    targets = torch.randint(10, (64,))  # points around ten centres, different on each rank
    inputs = centres[targets] + 4.0 * torch.randn(64, 64)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    if hvd.rank() == 0 and step % 50 == 0:
        print(f"step {step}: loss {loss.item():.3f}")

if hvd.rank() == 0:
    print(optimizer.handle.report())
optimizer.handle.detach()
hvd.shutdown()
