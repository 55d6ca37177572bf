"""Runs every Python block of some guides, one after another, as a reader would type them.

    python -m tests.docs.guides PAGE...

A guide assumes what every training script has: a model, a loader, a loss. Here they are small, and
the process group has one rank. The blocks of a page share their names; pages do not.
"""

import os
import re
import secrets
import sys
import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire.torch.transport import stores

DOCS = Path(__file__).parents[2] / "docs"
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def network() -> nn.Module:
    """Return a network with names as in a language model."""
    layers = {"embed": nn.Linear(64, 128), "body": nn.Linear(128, 128), "head": nn.Linear(128, 10)}
    return nn.Sequential(OrderedDict(layers))


class Layered(nn.Module):
    """A network with a list of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 128), nn.Linear(128, 10)])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            inputs = layer(inputs)
        return inputs


def surroundings() -> dict[str, Any]:
    """Return what a guide may use without saying where it comes from."""
    torch.manual_seed(0)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    codec = gradwire.adam(ratio=0.1)
    return {
        "torch": torch,
        "gradwire": gradwire,
        "nn": nn,
        "DistributedDataParallel": DistributedDataParallel,
        "module": network(),
        "model": model,
        "optimizer": optimizer,
        "handle": gradwire.torch.ddp.attach(model, codec, optimizer=optimizer),
        "codec": codec,
        "loss": nn.functional.cross_entropy,
        "loader": [(torch.randn(8, 64), torch.randint(10, (8,))) for _ in range(4)],
        "rank": 0,
        "step": 1000,
        "old_world_size": 1,
        "folder": "checkpoint",
        "log_dir": "logs",
    }


def of_a_gan() -> dict[str, Any]:
    """Return a generator, a discriminator that is attached, and batches for them."""
    generator = DistributedDataParallel(nn.Linear(8, 64))
    discriminator = DistributedDataParallel(network())
    optimizer = torch.optim.AdamW(discriminator.parameters(), lr=1e-3)
    return {
        "generator": generator,
        "discriminator": discriminator,
        "generator_optimizer": torch.optim.SGD(generator.parameters(), lr=0.1),
        "discriminator_optimizer": optimizer,
        "discriminator_handle": gradwire.torch.ddp.attach(
            discriminator, gradwire.adam(ratio=0.1), optimizer=optimizer
        ),
        "noise": torch.randn(4, 8),
        "real": torch.randn(4, 64),
        "fake": torch.randn(4, 64),
        "ones": torch.ones(4, dtype=torch.long),
        "zeros": torch.zeros(4, dtype=torch.long),
    }


def served() -> dict[str, Any]:
    """Return the address of a store, and a token."""
    store = stores.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    address = f"localhost:{store.port}"
    return {"store": store, "address": address, "token": secrets.token_hex()}


def beside(page: str, names: dict[str, Any]) -> dict[str, Any]:
    """Return what one page takes for granted beside `surroundings`."""
    weights = names["model"].parameters()
    optimizer = names["optimizer"]
    pages: dict[str, Callable[[], dict[str, Any]]] = {
        "quickstart": lambda: {"model": network()},
        "choosing": lambda: {"lr": 1e-3},
        "ddp": lambda: {
            "model": network(),
            "survivors": [0],
            "train": lambda model, handle: None,
            **of_a_gan(),
        },
        "diloco": served,
        "exchanges": lambda: {
            "optimizer": torch.optim.SGD(weights, lr=0.1),
            "train_for_a_while": lambda: None,
        },
        "fsdp": lambda: {
            "model": Layered(),
            "device": "cpu",
            "nodes": 1,
            "ranks_per_node": 1,
        },
        "schedules": lambda: {
            "epochs": 2,
            "train_one_epoch": lambda: None,
            "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1),
        },
    }
    return pages[page]() if page in pages else {}


def execute(page: str, names: dict[str, Any], prepare: Callable[[str], None]) -> int:
    """Run all blocks of a page among these names, after a call with each; return their number."""
    text = (DOCS / f"{page}.md").read_text("utf-8")
    blocks = list(FENCED.finditer(text))
    for block in blocks:
        prepare(block[1])
        lines = text.count("\n", 0, block.start(1))
        code = "\n" * lines + block[1]  # so that a traceback has the line of the page
        exec(compile(code, f"docs/{page}.md", "exec"), names)
    return len(blocks)


def run(page: str) -> int:
    """Run a page's blocks in a folder of their own; return how many there were."""
    names = surroundings()
    first = names["handle"]
    for inputs, targets in names["loader"]:
        names["loss"](names["model"](inputs), targets).backward()
        names["optimizer"].step()
        names["optimizer"].zero_grad()
    names |= beside(page, names)

    def prepare(block: str) -> None:
        if "attach(" in block:  # a page says once that a model is attached to one codec
            names["handle"].detach()

    count = execute(page, names, prepare)
    first.detach()
    return count


def main(pages: list[str]) -> None:
    """Run pages in a group of one rank."""
    warnings.simplefilter("error", gradwire.torch.ddp.PairingWarning)
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
        )
        os.environ["LOCAL_WORLD_SIZE"] = "1"  # as torchrun sets it
        for page in pages:
            os.mkdir(os.path.join(folder, page))
            os.chdir(os.path.join(folder, page))
            print(f"docs/{page}.md: {run(page)} blocks", flush=True)
        os.chdir("/")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
