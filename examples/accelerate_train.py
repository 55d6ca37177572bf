"""Train with Accelerate and compressed gradients. Repeat it with more epochs to resume.

torchrun --nproc-per-node=2 examples/accelerate_train.py run/ 2
"""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.optim import AdamW
from torch.utils.data import DataLoader, TensorDataset

from gradwire.torch.accelerate import attach

folder, epochs = Path(sys.argv[1]), int(sys.argv[2])
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision="bf16")
torch.manual_seed(0)
inputs = torch.randn(2048, 64)
loader = DataLoader(TensorDataset(inputs, inputs[:, :10].argmax(1)), batch_size=32)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
handle = attach(accelerator, model, optimizer=optimizer)

saved = sorted(each.parent for each in folder.glob("epoch-*/custom_checkpoint_0.pkl"))  # complete
if saved:
    accelerator.load_state(str(saved[-1]))
for epoch in range(len(saved), epochs):
    for batch, targets in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(batch), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.print(f"epoch {epoch + 1}: loss {loss.item():.3f}")
    accelerator.save_state(str(folder / f"epoch-{epoch + 1:03d}"))
accelerator.print(handle.report() if handle else "one process: nothing was compressed")
