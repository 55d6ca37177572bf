"""What a DDP model averages: its parameters by name, and which gradients are sparse."""

from collections.abc import Sequence
from typing import Any

import torch

from gradwire.torch.engine.parameter import plain_names

__all__ = ["known", "sparse"]


def known(ddp: Any) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that DDP averages, by name.

    These are the parameters that required gradients when the model was wrapped. DDP keeps their
    places in its buckets even while they are frozen.
    """
    ignored = getattr(ddp, "parameters_to_ignore", ())
    named = {name: each for name, each in ddp.module.named_parameters() if name not in ignored}
    reduced = _reduced(ddp, list(named.values()))
    named = {name: each for name, each in named.items() if id(each) in reduced}
    return plain_names(named)


def _reduced(ddp: Any, parameters: Sequence[torch.nn.Parameter]) -> set[int]:
    """Return the ids of the parameters that have a place in DDP's buckets."""
    every = {id(each) for each in parameters}
    count = ddp._get_ddp_logging_data()["num_parameter_tensors"]
    if count == len(every):
        return every
    try:
        buckets = ddp.reducer._get_zeros_like_grad_buckets()
        return {id(each) for bucket in buckets for each in bucket.parameters()}
    except RuntimeError:  # a bucket is sparse, or is allocated only in the first step
        trained = {id(each) for each in parameters if each.requires_grad}
        # If some were frozen before wrapping and some after it, they cannot be told apart. A record
        # of a parameter that DDP does not average is never used.
        return trained if count == len(trained) else every


def sparse(module: torch.nn.Module) -> set[int]:
    """Return the ids of parameters whose gradients are sparse, as DDP finds them."""
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return {
        id(each)
        for inner in module.modules()
        if isinstance(inner, kinds) and inner.sparse
        for each in inner.parameters(recurse=False)
    }
