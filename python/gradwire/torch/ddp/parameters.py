"""Makes the records that are kept for a model's parameters throughout training."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gradwire.torch import backends
from gradwire.torch.ddp.capacity import SizeLimit
from gradwire.torch.ddp.record import Parameter

if TYPE_CHECKING:
    from gradwire.codec import Codec
    from gradwire.state import State

__all__ = ["fresh_state", "known", "make", "sparse", "use"]

_BUCKET = 25 << 20


def known(ddp: Any) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that DDP averages, by name.

    These are the parameters that required gradients when the model was wrapped. DDP keeps their
    places in its buckets even while they are frozen.

    `torch.compile` wraps modules, which adds a prefix to names. It is removed, because a checkpoint
    may be saved with `torch.compile` and loaded without it, or vice versa.
    """
    ignored = getattr(ddp, "parameters_to_ignore", ())
    named = {name: each for name, each in ddp.module.named_parameters() if name not in ignored}
    reduced = _reduced(ddp, list(named.values()))
    named = {name: each for name, each in named.items() if id(each) in reduced}
    plain = {name.replace("_orig_mod.", ""): each for name, each in named.items()}
    return plain if len(plain) == len(named) else named


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


def make(
    named: Mapping[str, torch.nn.Parameter],
    dense: set[str],
    codec: "Codec",
    rank: int,
    bucket_nbytes: int | None,
) -> list[Parameter]:
    """Return the records of all parameters, in the order of the model.

    Parameters
    ----------
    named : mapping of str to torch.nn.Parameter
    dense : set of str
        Parameters that are always sent dense.
    codec : gradwire.Codec
    rank : int
        This rank, which selects the random numbers of the states.
    bucket_nbytes : int, optional
        Capacity of DDP's buckets.
    """
    turns = _turns(named, bucket_nbytes or _BUCKET)
    parameters = []
    for name, tensor in named.items():
        parameter = Parameter(name, tensor, turn=turns[name])
        if name not in dense:
            use(parameter, codec.for_shape(tensor.shape))
            parameter.state = fresh_state(parameter, rank)
        parameters.append(parameter)
    return parameters


def fresh_state(parameter: Parameter, rank: int) -> "State":
    """Return a new state. With stochastic rounding, every rank draws different numbers."""
    init = backends.of(parameter.tensor).init_state
    return init(parameter.codec, parameter.numel, parameter.name, rank)


def use(parameter: Parameter, codec: "Codec") -> None:
    """Compress a parameter with a codec from now on, and keep its state."""
    if parameter.codec == codec:
        return
    parameter.codec = codec
    # Without a memory, trimmed entries would be lost; and a frame of all entries cannot be trimmed.
    fixed = not (codec.memory.keeps and codec.sparsify.selects)
    parameter.limit = SizeLimit(codec.max_encoded_len(parameter.numel), fixed=fixed)


def _turns(named: Mapping[str, Any], bucket_nbytes: int) -> dict[str, int]:
    """Return each parameter's turn: its position from the end of the model, in bucket sizes.

    From the end, because the last parameter's gradient is ready first.
    """
    turns, nbytes = {}, 0
    for name, tensor in reversed(list(named.items())):
        turns[name] = nbytes // bucket_nbytes
        nbytes += tensor.numel() * tensor.element_size()
    return turns
