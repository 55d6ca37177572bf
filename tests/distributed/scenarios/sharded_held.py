"""FSDP2 whose gradients stay inside the node until the optimizer's step exchanges them."""

import warnings
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.optim import SGD, AdamW

import gradwire
import gradwire.torch.fsdp
from tests.distributed.scenarios.common import batch
from tests.distributed.scenarios.sharded import alike, attached, distance, mesh, sharded


def exchanged_by_the_step(rank: int, world_size: int) -> dict[str, Any]:
    """At ratio 1, whole steps of passes inside the node, against torch's own HSDP."""
    both, found = mesh(), {}
    for how in ("one", "two", "last", "factor", "bf16", "cleared", "paused"):
        policy = MixedPrecisionPolicy(torch.float32, torch.bfloat16)
        options: dict[str, Any] = {"mp_policy": policy} if how == "bf16" else {}
        pair = [sharded(over, **options) for over in (both, both["shard"])]
        for model in pair:
            for module in model.modules():
                if how == "factor" and isinstance(module, FSDPModule):
                    module.set_force_sum_reduction_for_comms(True)  # which Gloo needs
                    module.set_gradient_divide_factor(8.0)
        optimizers = [
            kind(each.parameters(), lr=0.05)
            for kind, each in zip((torch.optim.SGD, SGD), pair, strict=True)
        ]
        codec = gradwire.topk(ratio=1.0)
        with attached(pair[1], codec, both, optimizer=optimizers[1]) as handle:
            for model, optimizer in zip(pair, optimizers, strict=True):
                for step in range(4):
                    held = model is pair[1] or how == "last"
                    passes = 1 if how in ("one", "factor", "bf16") else 2
                    for part in range(passes):
                        last = part == passes - 1
                        model.set_requires_all_reduce(not held or (how == "last" and last))
                        if part == 0 or how == "cleared":
                            optimizer.zero_grad()
                        inputs, targets = batch(rank, 2 * step + part)
                        loss = nn.functional.mse_loss(model(inputs), targets)
                        if how == "paused" and model is pair[1] and last:
                            model.set_requires_all_reduce(True)
                            with handle.paused():
                                loss.backward()
                        else:
                            loss.backward()
                    optimizer.step()
            found[how] = distance(*pair)
            found[f"{how} steps"] = handle.step
    return found


def clipping(rank: int, world_size: int) -> dict[str, Any]:
    """Clip to a norm far below the usual one: dense, gradients in the node, and updates."""
    both, found = mesh(), {}
    torch.manual_seed(5)
    teacher = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 10)).requires_grad_(False)
    for each in teacher.parameters():
        nn.init.normal_(each, std=0.5)

    def sampled(seed: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.randn(rows, 32, generator=torch.Generator().manual_seed(seed))
        return inputs, teacher(inputs).argmax(dim=1)

    for how in ("dense", "gradients", "updates"):
        torch.manual_seed(0)
        model: Any = nn.Sequential(
            nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 10)
        )
        for each in (model[0], model[2], model):
            fully_shard(each, mesh=both if how == "dense" else both["shard"])
        kind = torch.optim.AdamW if how == "dense" else AdamW
        optimizer = kind(model.parameters(), lr=3e-3)
        handle = None
        if how != "dense":
            handle = attached(model, gradwire.adam(ratio=0.05), both, optimizer=optimizer)
        model.set_requires_all_reduce(how != "gradients")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for step in range(150):
                inputs, targets = sampled(1000 * step + rank, 64)
                optimizer.zero_grad()
                (50 * nn.functional.cross_entropy(model(inputs), targets)).backward()
                nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)
                optimizer.step()
        replicas = alike(model)
        with torch.no_grad():
            inputs, targets = sampled(999_999, 2000)
            loss = float(nn.functional.cross_entropy(model(inputs), targets))
        found[how] = {
            "loss": loss,
            "alike": replicas,
            "said": [
                str(each.message)
                for each in caught
                if each.category is gradwire.torch.fsdp.PairingWarning
            ],
        }
        if handle is not None:
            handle.detach()
    return found


def mixed(rank: int, world_size: int) -> dict[str, Any]:
    """A gradient of the node on top of what a step has exchanged: it cannot be applied."""
    both, model = mesh(), sharded(mesh()["shard"])
    optimizer = AdamW(model.parameters(), lr=3e-3)
    texts = []
    with attached(model, gradwire.adam(ratio=0.05), both, optimizer=optimizer) as handle:
        model.set_requires_all_reduce(False)
        for step, clears in enumerate((True, True, False, True)):
            if clears:
                optimizer.zero_grad()
            inputs, targets = batch(rank, step)
            nn.functional.mse_loss(model(inputs), targets).backward()
            try:
                optimizer.step()
            except gradwire.torch.fsdp.UpdateError as error:
                texts.append(str(error))
        return {"texts": texts, "steps": handle.step, "alike": alike(model)}
