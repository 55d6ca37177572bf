"""Train one model on sites that come and go: DiLoCo without a fixed group of ranks.

    python -m gradwire.torch.diloco 29400 --host HOST    # on one host: serves the store
    python examples/sites.py HOST:29400 SEED             # on every site, at any time

Set GRADWIRE_DILOCO_TOKEN to a secret that the sites share. Stop a site, kill it or start another:
the others continue.
"""

import itertools
import sys

import torch
from torch import nn

import gradwire
from gradwire.torch import diloco

address, seed = sys.argv[1], int(sys.argv[2])
model = nn.Sequential(
    nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)  # each site has its own
draw = torch.Generator().manual_seed(seed)  # and its own data
centres = torch.randn(10, 64, generator=torch.Generator().manual_seed(1))

with diloco.DiLoCo(
    model,
    gradwire.sparseloco(),
    optimizer=optimizer,
    inner_steps=20,
    membership=diloco.Membership(address),
) as outer:
    for step in itertools.count(1):
        targets = torch.randint(10, (64,), generator=draw)
        inputs = centres[targets] + 4.0 * torch.randn(64, 64, generator=draw)
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {outer.inner_step}: {outer.world_size} sites, loss {loss:.3f}", flush=True)
