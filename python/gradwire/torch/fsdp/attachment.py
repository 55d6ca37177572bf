"""Attaches a codec to a model of FSDP2: checks the arguments, and finds nodes and replicas."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from gradwire.schedule import Schedule
from gradwire.torch.auto import choices_of
from gradwire.torch.engine.attach import attach_engine
from gradwire.torch.engine.config import Codecs, GradScaler, Optimizers, Options
from gradwire.torch.engine.handle import Handle
from gradwire.torch.engine.sharding import Shard, laid_out, local, shard_of
from gradwire.torch.fsdp.source import FSDPSource, Group, groups_of, names_of
from gradwire.torch.transport import ProcessGroups
from gradwire.torch.transport.topology import Hierarchy


def attach(
    model: torch.nn.Module,
    codec: Codecs | None = None,
    optimizer: Optimizers | None = None,
    *,
    mesh: DeviceMesh | dist.ProcessGroup,
    min_ratio: float | None = None,
    schedule: Schedule | None = None,
    grad_scaler: GradScaler | None = None,
    min_numel: int = 1024,
    min_ndim: int = 1,
    low_memory: bool | None = None,
    timeout: timedelta | None = None,
) -> Handle:
    """Average the gradients of an FSDP2 model between nodes, compressed. A collective.

    `torch.distributed.fsdp.fully_shard` shards the model inside a node, over a mesh with one
    dimension, and averages gradients there. This averages each rank's shards with those of the same
    rank in the other nodes: together they are hybrid sharding (HSDP). Residuals and moments are as
    large as a rank's shard.

    Parameters
    ----------
    model : torch.nn.Module
        A model on which ``fully_shard`` was called, with all its modules, over the ranks of this
        node alone. Call ``attach`` on all ranks of all nodes. All nodes must start with the same
        parameters.
    codec : gradwire.Codec, str, mapping of str to (gradwire.Codec, str or None), or list, optional
        As in `gradwire.torch.ddp.attach`. It sees a rank's shard of each parameter as a tensor.
    optimizer : torch.optim.Optimizer or list of those, optional
        As in `gradwire.torch.ddp.attach`; made from the parameters after ``fully_shard``.
    mesh : DeviceMesh or torch.distributed.ProcessGroup
        The replicas of this rank's shards: a mesh with one dimension, one with the dimensions
        (replicas, shards), or a process group.
    min_ratio, schedule, grad_scaler, min_numel, min_ndim, low_memory, timeout
        As in `gradwire.torch.ddp.attach`. Sizes are those of the whole parameter.

    Returns
    -------
    Handle
        Saves, restores, reports and detaches. After ``detach()``, gradients are still averaged
        between the nodes, without compression.

    Raises
    ------
    TypeError
        The model does not use FSDP, ``mesh`` is not a mesh or group, or as in
        `gradwire.torch.ddp.attach`.
    ValueError
        FSDP averages over replicas itself (a mesh of two dimensions), shards over other dimensions
        too, has a hook already, or is from a torch release with another layout of gradients; the
        mesh does not fit the model; or as in `gradwire.torch.ddp.attach`.
    ExchangeError
        Gloo, which carries messages between the ranks, could not connect them.

    Warns
    -----
    PairingWarning
        As in `gradwire.torch.ddp.attach`.

    Notes
    -----
    The backward pass does not wait for the exchange. FSDP's hook only enqueues the gradients that a
    module reduced, and the averages are written to ``.grad`` at the end of the pass. So hooks of
    ``register_post_accumulate_grad_hook``, and optimizers within the backward pass, are refused.

    `attach` makes three process groups: one between the nodes (two for exchanges that sum on the
    wire), one inside this node, and one over all ranks. Frames go over the
    backend that ``mesh`` has for GPUs, such as NCCL, if CUDA kernels encode; everything else goes
    over Gloo. Memory: a copy of this rank's shards of the gradients, in addition to that of
    `gradwire.torch.ddp.attach`.
    """
    chosen, choices = choices_of(codec, optimizer, min_ratio, schedule)
    groups = groups_of(model)
    options = Options(
        codec=chosen,
        optimizer=optimizer,
        schedule=schedule,
        grad_scaler=grad_scaler,
        min_numel=min_numel,
        min_ndim=min_ndim,
        low_memory=low_memory,
    )
    inside = _check_groups(groups)
    named = names_of(model, groups)
    _check_parameters(named)
    over = _replicas(mesh, inside)
    known = {id(tensor) for tensor in named.values()}
    entry = FSDPSource(model, groups, known, over)
    entry.check()
    across = dist.get_process_group_ranks(over)
    shards = ProcessGroups(groups[0].shards, timeout)
    try:
        everyone = shards.make().all_gather_object(list(across))
    finally:
        shards.leave()
    union = sorted({rank for ranks in everyone for rank in ranks})
    share, shares = inside.index(dist.get_rank()), len(inside)
    return attach_engine(
        named,
        options,
        Hierarchy(over, inside, across, timeout, union),
        entry,
        sparse=set(),
        share_of=lambda name, tensor: _shard_of(name, tensor, share, shares),
        decides=choices,
    )


def _check_groups(groups: Sequence[Group]) -> list[int]:
    if any(getattr(group.inner.mesh_info, "replicate_process_group", None) for group in groups):
        raise ValueError(
            "fully_shard() was given a two-dimensional mesh: FSDP then averages over replicas "
            "itself, uncompressed, before anything can be compressed. Give it only the shard "
            'dimension, fully_shard(module, mesh=mesh["shard"]), and the replicas to attach(..., '
            'mesh=mesh["replicate"])'
        )
    meshes = {tuple(sorted(dist.get_process_group_ranks(group.shards))) for group in groups}
    if len(meshes) > 1:
        raise ValueError(f"all FSDP modules must have the same mesh, got ranks {sorted(meshes)}")
    return list(meshes.pop())


def _check_parameters(named: dict[str, Any]) -> None:
    if not named:
        raise ValueError("the model has no parameter that FSDP shards and that requires gradients")
    for name, tensor in named.items():
        if tensor.device_mesh.ndim > 1 or tensor.is_meta:
            raise ValueError(
                f"parameter {name!r} is sharded over {tensor.device_mesh.ndim} dimensions, on "
                f"{tensor.device}: gradwire supports models with values that only FSDP shards"
            )


def _replicas(mesh: Any, inside: Sequence[int]) -> dist.ProcessGroup:
    group: Any = mesh
    if isinstance(mesh, DeviceMesh):
        group = mesh.get_group(0)
        shards: Any = mesh.get_group(1) if mesh.ndim > 1 else None
        if mesh.ndim > 2 or (shards and sorted(dist.get_process_group_ranks(shards)) != inside):
            raise ValueError(
                f"mesh= must have the dimensions (replicas, shards), with the shards over {inside}"
                f", as the model; got {mesh}"
            )
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            "mesh= takes the DeviceMesh of the replicas or their process group, got "
            f"{type(mesh).__name__}"
        )
    ranks = dist.get_process_group_ranks(group)
    if set(ranks) & set(inside) != {dist.get_rank()}:
        raise ValueError(
            f"mesh= has the ranks {sorted(ranks)}, but the model is sharded over {inside}: this "
            "rank must be the only one in both"
        )
    return group


def _shard_of(name: str, tensor: torch.Tensor, share: int, shares: int) -> Shard:
    """Return this rank's part of a DTensor, as a `Shard`."""
    here = local(tensor)
    shard = shard_of(name, tensor, share, shares)
    whole: Any = tensor
    ordered = whole.device_mesh.get_local_rank() == share and whole.placements[0].is_shard(0)
    if ordered and shard.shape == tuple(here.shape) and shard.rows is not None:
        return shard
    return Shard(tuple(here.shape), laid_out(here), 0, here.numel())
