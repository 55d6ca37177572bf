"""Train with autocast, accumulated gradients and clipping in one loop, and compressed gradients.

    torchrun --nproc-per-node=2 mixed_precision.py            # bfloat16; or one process: python
    torchrun --nproc-per-node=2 mixed_precision.py --float16  # with a loss scaler

A rank's gradients must be clipped before they are compressed: afterwards .grad holds updates. So in
bfloat16 all passes stay on their rank, and step() exchanges the clipped gradients. A loss scaler
must check the exchanged gradients: so in float16 the last pass exchanges them, and clipping is not
possible. See "Train in mixed precision" in the documentation.
"""

import contextlib
import sys
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from gradwire.torch import ddp

STEPS, PASSES, LENGTH, HALF = 150, 4, 16, "--float16" in sys.argv
files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:40]
text = torch.tensor(list(b"".join(file.read_bytes() for file in files))).clamp(max=127)
windows = text.unfold(0, LENGTH + 1, 1)  # of characters; the last is to be predicted

if dist.is_torchelastic_launched():
    dist.init_process_group("gloo")
else:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
rank = dist.get_rank()
torch.manual_seed(0)  # the same model on every rank
layers = [nn.Embedding(128, 32), nn.Flatten(), nn.Linear(32 * LENGTH, 256), nn.ReLU()]
model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers, nn.Linear(256, 128)))
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
scaler = torch.amp.GradScaler("cpu", enabled=HALF)
handle = ddp.attach(model, optimizer=optimizer, grad_scaler=scaler if HALF else None)
precision = torch.float16 if HALF else torch.bfloat16
draw = torch.Generator().manual_seed(rank)  # different windows on every rank

for step in range(1, STEPS + 1):
    optimizer.zero_grad()
    total = 0.0
    for number in range(1, PASSES + 1):
        batch = windows[torch.randint(len(windows), (64,), generator=draw)]
        exchanged = HALF and number == PASSES
        with contextlib.nullcontext() if exchanged else model.no_sync():
            with torch.autocast("cpu", dtype=precision):  # for the forward pass only
                outputs = model(batch[:, :-1])
                loss = nn.functional.cross_entropy(outputs.float(), batch[:, -1]) / PASSES
            scaler.scale(loss).backward()
        total += loss.item()
    if not HALF:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    scaler.step(optimizer)  # without a scaler, optimizer.step()
    scaler.update()
    if rank == 0 and step % 50 == 0:
        print(f"step {step}: loss {total:.3f}", flush=True)
if rank == 0:
    print(handle.report())
dist.destroy_process_group()
