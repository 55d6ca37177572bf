"""Attaches a codec to a DDP model: checks the arguments, and that all ranks agree on them."""

import weakref
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gradwire._codec import Codec
from gradwire.schedule import Schedule
from gradwire.torch.ddp.source import DDPSource, check_ranks
from gradwire.torch.engine.attach import attach_engine
from gradwire.torch.engine.config import Codecs, GradScaler, Optimizers, Options
from gradwire.torch.engine.handle import Handle
from gradwire.torch.engine.pairing import default_codec
from gradwire.torch.engine.parameter import plain_names
from gradwire.torch.transport import ProcessGroups, Transport

if TYPE_CHECKING:
    from gradwire.torch.transport.topology import Levels

_REFUSED = {
    "_use_python_reducer": 'torch._dynamo.config.optimize_ddp = "python_reducer" passes no buckets '
    "to hooks; set it to True before the model is wrapped",
    "mixed_precision": "DDP's mixed_precision= registers its own hook; use autocast instead",
    "skip_all_reduce_unused_params": "DDP's skip_all_reduce_unused_params= hides the end of each "
    "pass; use find_unused_parameters instead",
}
"""Attributes of DDP models that no codec can be attached to, and what to do."""


def attach(
    model: torch.nn.Module,
    codec: Codecs | None = None,
    optimizer: Optimizers | None = None,
    *,
    min_ratio: float | None = None,
    schedule: Schedule | None = None,
    grad_scaler: GradScaler | None = None,
    min_numel: int = 1024,
    min_ndim: int = 1,
    low_memory: bool | None = None,
    process_group: dist.ProcessGroup | None = None,
    timeout: timedelta | None = None,
    hierarchy: "Levels | None" = None,
) -> Handle:
    """Compress the gradients of a DDP model. A collective: call it on every rank.

    From the next backward pass on, each bucket is exchanged compressed, overlapping the backward
    pass: as one all-gather of frames instead of an all-reduce, from eight ranks on as a
    reduce-scatter and an all-gather, or as the codec's exchange specifies. All ranks decode the
    same bytes in the same order, so replicas stay bit-identical. Entries that are not sent stay in
    a residual, one per parameter and rank, and are sent later.

    Parameters
    ----------
    model : torch.nn.parallel.DistributedDataParallel
        A model on any device, or the result of `torch.compile` on one. It must not have another
        communication hook.
    codec : gradwire.Codec, str, mapping of str to (gradwire.Codec, str or None), or list, optional
        Codec of all compressed parameters, or the name of a preset, as for `gradwire.codec`; or
        codecs by name, such as ``{"embed*": None, "*.weight": gradwire.adam(0.01)}``. Keys are
        names as in ``model.module.named_parameters()``, or patterns with ``*``, ``?`` and
        ``[abc]``; the first match applies. A list has one for each optimizer. Parameters with None,
        or without a match, are sent uncompressed. All codecs must have the same exchange. By
        default the codec that suits each optimizer, at a ratio of 0.01: `gradwire.adam` for
        ``torch.optim.AdamW`` and ``Adam``, `gradwire.dgc` for ``SGD`` with momentum,
        `gradwire.topk` for ``SGD`` without, `gradwire.muon` at 0.1 for ``Muon``, and
        `gradwire.float8` for anything else. Options that the codec shares with the optimizer, such
        as ``beta2`` and ``momentum``, are taken from the parameter's group unless given. With
        ``"auto"``, steps are timed uncompressed, in bfloat16 and with that codec at ``min_ratio``,
        and the fastest is used. See ``docs/auto.md``.
    optimizer : torch.optim.Optimizer or list of those, optional
        The optimizer of the model, or several, which have different parameters and step in any
        order. `attach` then checks that it suits the codec, and a pass whose gradients are cleared
        before the optimizer's ``step()`` is undone automatically, as by `Handle.discard`. torch's
        AdamW, Adam, SGD or Muon then applies updates, to which the codec has already applied
        momentum or a learning rate, unchanged, and exchanges gradients that ``no_sync()`` has left
        on each rank (`gradwire.torch.optim.adapt`). Required without a codec, by
        `gradwire.memory.AdamCorrection`, and by ``"auto"``.
    min_ratio : float, optional
        The ratio of the codec that ``"auto"`` tries, in (0, 1]: the smallest share of the entries
        that may be sent, 0.01 by default.
    schedule : gradwire.schedule.Schedule, optional
        Changes the compression from epoch to epoch; call `Handle.epoch` to advance it. By default
        the one that `gradwire.schedule.recommended` returns for the codec: a warm-up by steps,
        which advances by itself, for codecs that send steps; none for others. With ``"auto"``, only
        ``Constant()`` is allowed, which disables the warm-up.
    grad_scaler : torch.amp.GradScaler, optional
        The scaler of the loss. Residuals are then kept unscaled. If a gradient is not finite on
        some rank, or an average overflows, every gradient of that step becomes infinite on every
        rank and every residual is restored, so the scaler skips the step everywhere and nothing is
        lost. Without a scaler, a non-finite gradient raises `GradientError`.
    min_numel : int
        Parameters with fewer entries are sent uncompressed, in their own dtype, in the same
        collective.
    min_ndim : int
        Parameters with fewer dimensions are also sent uncompressed: with 2, all biases and norms.
    low_memory : bool, optional
        Keep residuals and second moments in bfloat16: half of the memory; see
        `gradwire.memory.Residual`. By default as the codec says.
    process_group : torch.distributed.ProcessGroup, optional
        Group to use instead of the model's own; it must consist of the same ranks.
    timeout : datetime.timedelta, optional
        How long to wait for other ranks. Defaults to the timeout of the process group.
    hierarchy : int, "node", DeviceMesh or tuple of ProcessGroup, optional
        Compress between nodes only. Inside a node gradients are summed uncompressed: each rank sums
        one share of every parameter, and exchanges it with its partners in the other nodes. Pass
        the number of ranks per node, which are consecutive; ``"node"`` for torchrun's
        ``LOCAL_WORLD_SIZE``; a mesh with the dimensions (nodes, ranks per node); or two groups, of
        this rank's node and of its partners. See ``docs/hierarchy.md``.

    Returns
    -------
    Handle
        Saves, restores, reports and detaches.

    Raises
    ------
    TypeError
        ``model`` is not a DDP model, ``optimizer`` not an optimizer of torch, or ``codec`` not a
        codec or a dict of codecs (for example a preset that was not called, a preset's name, or a
        single part).
    ValueError
        Parameters have no values, the model has another hook, the process group has other ranks
        than the model, options are incompatible, the schedule does not fit the codec, a pattern of
        names matches no parameter, ``hierarchy`` does not divide the ranks into nodes of equal size
        or gradients are sparse with it, codecs have several exchanges, the optimizer would not
        apply the codec's updates correctly, has none of the parameters or some of another one's, or
        the ranks disagree on the arguments.
    ExchangeError
        Gloo, which carries messages between the ranks, could not connect them.

    Warns
    -----
    PairingWarning
        The optimizer costs accuracy with this codec, lacks trainable parameters, or was not given,
        so that it cannot be checked.
    RuntimeWarning
        Nothing is compressed: there is one rank, or no parameter to which a codec applies. Or each
        rank receives more bytes of frames than with an uncompressed all-reduce; the warning has
        advice. Later, if the schedule waits for `Handle.epoch`, which is not called.

    Notes
    -----
    `attach` makes two process groups, one for buckets and one for messages between steps, and a
    third one for exchanges that sum: by default from eight ranks on
    (`gradwire.exchange.ByRanks`), with ``"auto"`` from three. Messages go over Gloo. Frames do too,
    unless CUDA kernels encode and the given group moves tensors of the GPU, as NCCL does: then they
    go over the same backend, from GPU to GPU. Sums inside a node need no kernels, and always use
    it. If the model spans only some of the ranks, the other ranks must make the same number of
    groups at the same time, for example with ``new_group([rank],
    use_local_synchronization=True)``, because torch names groups by a counter.

    Memory: two float32 buffers per compressed parameter, four with momentum or a second moment, and
    slots of compressed size. With ``low_memory=True`` the buffers are bfloat16. float64 gradients
    are rounded to float32 before they are compressed.
    """
    ddp = _unwrap(model)
    chosen: Any = default_codec(optimizer) if codec is None else codec
    choices = None
    if min_ratio is not None or not isinstance(chosen, Codec | list):  # "auto", perhaps
        from gradwire.torch.auto import choices_of

        chosen, choices = choices_of(codec, optimizer, min_ratio, schedule, hierarchy)
    options = Options(
        codec=chosen,
        optimizer=optimizer,
        schedule=schedule,
        grad_scaler=grad_scaler,
        min_numel=min_numel,
        min_ndim=min_ndim,
        low_memory=low_memory,
    )
    named = _known(ddp)
    _check(ddp)
    over = ddp.process_group if process_group is None else process_group
    check_ranks(ddp.process_group, over)
    entry = DDPSource(ddp, over)
    entry.check()
    sparse = _sparse(ddp.module)
    transport: Transport = ProcessGroups(over, timeout)
    if hierarchy is not None:
        from gradwire.torch.transport.topology import Hierarchy, parse_hierarchy

        inside, across = parse_hierarchy(hierarchy, over)
        if undivided := [name for name, parameter in named.items() if id(parameter) in sparse]:
            raise ValueError(
                f"the gradient of {undivided[0]!r} is sparse, which hierarchy= cannot divide among "
                "the ranks of a node: make the embedding with sparse=False, or leave hierarchy= out"
            )
        if len(inside) > 1:  # else every rank is a node
            transport = Hierarchy(over, inside, across, timeout)
    return attach_engine(
        named,
        options,
        transport,
        entry,
        sparse=sparse,
        bucket_nbytes=getattr(ddp, "bucket_bytes_cap", None),
        joining=_joining(ddp),
        decides=choices,
    )


def _joining(ddp: Any) -> Callable[[], bool]:
    """Return a function that tells whether a model is inside `join`, without keeping it alive."""
    model = weakref.ref(ddp)
    return lambda: bool(getattr(getattr(model(), "_join_config", None), "enable", False))


def is_ddp(model: torch.nn.Module) -> bool:
    """Tell whether this is a DDP model, or what `torch.compile` returns for one."""
    return isinstance(getattr(model, "_orig_mod", model), DistributedDataParallel)


def _unwrap(model: torch.nn.Module) -> Any:
    inner = getattr(model, "_orig_mod", model)
    if not is_ddp(model):
        raise TypeError(
            "attach() takes a model wrapped in torch.nn.parallel.DistributedDataParallel, "
            f"got {type(inner).__name__}"
        )
    return inner


def _check(model: Any) -> None:
    for name, parameter in model.module.named_parameters():
        if parameter.requires_grad and parameter.is_meta:
            raise ValueError(f"parameter {name!r} is on {parameter.device}: it has no values")
    for option, why in _REFUSED.items():
        if getattr(model, option, None):
            raise ValueError(why)


def _known(ddp: Any) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that DDP averages, by name.

    These are the parameters that required gradients when the model was wrapped. DDP keeps their
    places in its buckets even while they are frozen.
    """
    ignored = getattr(ddp, "parameters_to_ignore", ())
    named = {name: tensor for name, tensor in ddp.module.named_parameters() if name not in ignored}
    reduced = _reduced(ddp, named.values())
    return plain_names({name: tensor for name, tensor in named.items() if id(tensor) in reduced})


def _reduced(ddp: Any, parameters: Collection[torch.nn.Parameter]) -> set[int]:
    """Return the ids of the parameters that have a place in DDP's buckets."""
    ids = {id(tensor) for tensor in parameters}
    count = ddp._get_ddp_logging_data()["num_parameter_tensors"]
    if count == len(ids):
        return ids
    try:
        buckets = ddp.reducer._get_zeros_like_grad_buckets()
        return {id(tensor) for bucket in buckets for tensor in bucket.parameters()}
    except RuntimeError:  # a bucket is sparse, or is allocated only in the first step
        trained = {id(tensor) for tensor in parameters if tensor.requires_grad}
        # If some were frozen before wrapping and some after it, they cannot be told apart. A record
        # of a parameter that DDP does not average is never used.
        return trained if count == len(trained) else ids


def _sparse(module: torch.nn.Module) -> set[int]:
    """Return the ids of parameters whose gradients are sparse, as DDP finds them."""
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return {
        id(tensor)
        for inner in module.modules()
        if isinstance(inner, kinds) and inner.sparse
        for tensor in inner.parameters(recurse=False)
    }
