"""From a model's parameters to what is known of each of them for as long as training lasts."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gradwire.memory import NoMemory
from gradwire.sparsify import All
from gradwire.torch.ddp.capacity import SizeLimit
from gradwire.torch.ddp.layout import Parameter

if TYPE_CHECKING:
    from gradwire.codec import Codec
    from gradwire.state import State

__all__ = ["fresh_state", "known", "make", "sparse", "use"]

_BUCKET = 25 << 20


def known(ddp: Any) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that DDP averages, by name.

    These are those that required gradients when the model was wrapped, whatever they say now:
    DDP keeps a place for them in its buckets, also while they are frozen.

    `torch.compile` puts a module into another one, which all names show. They must not depend on
    it, as a checkpoint may be loaded with or without.
    """
    ignored = getattr(ddp, "parameters_to_ignore", ())
    named = {name: each for name, each in ddp.module.named_parameters() if name not in ignored}
    reduced = _reduced(ddp, list(named.values()))
    named = {name: each for name, each in named.items() if id(each) in reduced}
    plain = {name.replace("_orig_mod.", ""): each for name, each in named.items()}
    return plain if len(plain) == len(named) else named


def _reduced(ddp: Any, parameters: Sequence[torch.nn.Parameter]) -> set[int]:
    """Return the ids of those that have a place in DDP's buckets."""
    every = {id(each) for each in parameters}
    count = ddp._get_ddp_logging_data()["num_parameter_tensors"]
    if count == len(every):
        return every
    try:
        buckets = ddp.reducer._get_zeros_like_grad_buckets()
        return {id(each) for bucket in buckets for each in bucket.parameters()}
    except RuntimeError:  # there is a sparse bucket, or one that is allocated in the first step
        trained = {id(each) for each in parameters if each.requires_grad}
        # If some were frozen before wrapping and some after it, nothing tells which: what is kept
        # for one that DDP does not know is never touched.
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
    """Return all parameters, in the order of the model.

    Parameters
    ----------
    named : mapping of str to torch.nn.Parameter
    dense : set of str
        Those that always travel dense.
    codec : gradwire.Codec
    rank : int
        Random numbers of a state are this rank's.
    bucket_nbytes : int, optional
        What DDP makes its buckets by.
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
    """Return a state without a past. Where the codec rounds by chance, every rank has its own."""
    state: State = parameter.codec.init_state(parameter.numel, name=parameter.name, stream=rank)
    return state


def use(parameter: Parameter, codec: "Codec") -> None:
    """Compress a parameter by a codec from now on; its state goes on."""
    if parameter.codec == codec:
        return
    parameter.codec = codec
    # Without a memory, what is trimmed would be lost; and a frame of all entries cannot be trimmed.
    fixed = isinstance(codec.memory, NoMemory) or isinstance(codec.sparsify, All)
    parameter.limit = SizeLimit(codec.max_encoded_len(parameter.numel), fixed=fixed)


def _turns(named: Mapping[str, Any], bucket_nbytes: int) -> dict[str, int]:
    """Count the parameters in buckets, from the last one, whose gradient comes first."""
    turns, nbytes = {}, 0
    for name, tensor in reversed(list(named.items())):
        turns[name] = nbytes // bucket_nbytes
        nbytes += tensor.numel() * tensor.element_size()
    return turns
