"""Programs that users start with torchrun, run in ranks that are there already."""

import contextlib
import io
import re
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import gradwire
from gradwire.torch.ddp import PairingWarning
from tests.trainers.scenarios.started import as_started_by_torchrun

FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOCS = Path(__file__).parents[3] / "docs"
EXAMPLES = Path(__file__).parents[3] / "examples"


def run(rank: int, world_size: int, name: str, arguments: list[str]) -> str:
    """Run an example; return what it prints."""
    become(rank, world_size)
    sys.argv = [name, *arguments]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return out.getvalue()


def page(rank: int, world_size: int, name: str, folder: str) -> int:
    """Run the Python blocks of a page one after another; return their number."""
    become(rank, world_size)
    names: dict[str, Any] = {"gradwire": gradwire, "torch": torch, "folder": folder}
    given = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    inputs = torch.randn(64, 64)
    if name == "accelerate":
        names["accelerator"] = Accelerator(cpu=True, gradient_accumulation_steps=2)
        names["model"] = given
        names["optimizer"] = torch.optim.AdamW(given.parameters())
        pairs = TensorDataset(inputs, inputs[:, :10].argmax(1))
        names["loader"] = names["accelerator"].prepare(DataLoader(pairs, batch_size=4))
    else:
        names["arguments"] = TrainingArguments(folder, max_steps=2, use_cpu=True, report_to=[])
        sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": 64}
        config = LlamaConfig(**sizes, num_hidden_layers=1, num_attention_heads=2)
        ids = torch.arange(16)
        names["dataset"] = [{"input_ids": ids, "labels": ids}] * 64
        names |= {"Trainer": Trainer, "model": LlamaForCausalLM(config)}
    blocks = FENCED.findall((DOCS / f"{name}.md").read_text("utf-8"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", PairingWarning)
        for block in blocks:
            exec(block, names)
    return len(blocks)


def become(rank: int, world_size: int) -> None:
    """Have the variables that torchrun sets, and let Accelerate forget an earlier program."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    as_started_by_torchrun(rank, world_size)
