"""Train a small language model with Trainer and compressed gradients; repeat it to continue.

torchrun --nproc-per-node=2 examples/transformers_train.py run/ 40
"""

import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from gradwire.torch.transformers import Compress

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
config = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
)
starts = torch.randint(256, (512, 1), generator=torch.Generator().manual_seed(0))
texts = (starts + torch.arange(32)) % 256
arguments = TrainingArguments(
    str(folder), max_steps=steps, save_steps=20, logging_steps=10, learning_rate=2e-3, use_cpu=True
)
compress = Compress()
trainer = Trainer(
    LlamaForCausalLM(config),
    arguments,
    train_dataset=[{"input_ids": text, "labels": text} for text in texts],
    callbacks=[compress],
)
trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")))
if trainer.is_world_process_zero() and compress.handle is not None:
    print(compress.handle.report())
