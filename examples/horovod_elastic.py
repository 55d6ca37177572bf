r"""Train with Horovod and compressed gradients while ranks join and leave.

    echo localhost:1 > hosts
    printf '#!/bin/sh\ncat hosts\n' > discover && chmod +x discover
    horovodrun -np 1 --min-np 1 --max-np 2 --gloo --host-discovery-script ./discover \
        python examples/horovod_elastic.py 5000

While it trains, `echo localhost:2 > hosts` adds a rank. On several machines, print their names.
"""

import sys

import horovod.torch as hvd
import torch
from torch import nn

from gradwire.torch import horovod

hvd.init()
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
optimizer = horovod.DistributedOptimizer(optimizer, model.named_parameters())
centres = torch.randn(10, 64, generator=torch.Generator().manual_seed(1))
steps = int(sys.argv[1])


@hvd.elastic.run  # type: ignore[untyped-decorator]
def train(state: horovod.ElasticState) -> None:
    """Train from the last commit. Horovod calls this again whenever the ranks have changed."""
    total = 0.0
    while state.step < steps:
        targets = torch.randint(10, (64,))
        inputs = centres[targets] + 4.0 * torch.randn(64, 64)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        state.step += 1
        total += loss.item()
        if state.step % 50 == 0:
            if hvd.rank() == 0:
                print(f"step {state.step}, ranks {hvd.size()}: loss {total / 50:.3f}", flush=True)
            total = 0.0
            state.commit()  # what a rank that fails falls back to; here ranks join and leave


# Replaces hvd.elastic.TorchState, and also keeps the residuals of all ranks.
train(horovod.ElasticState(model=model, optimizer=optimizer, step=0))
if hvd.rank() == 0:
    print(optimizer.handle.report())
optimizer.handle.detach()
hvd.shutdown()
