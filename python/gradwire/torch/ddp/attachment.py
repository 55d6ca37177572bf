"""Attaching a codec to a DDP model: what is checked, and what all ranks must agree on."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gradwire import _validate
from gradwire.memory import Residual
from gradwire.schedule import SCHEDULES, Constant, Schedule
from gradwire.torch.ddp import parameters as making
from gradwire.torch.ddp.agreement import agree, checksum
from gradwire.torch.ddp.control import Control
from gradwire.torch.ddp.exchange import build
from gradwire.torch.ddp.given import check_codec
from gradwire.torch.ddp.groups import Groups
from gradwire.torch.ddp.handle import Handle
from gradwire.torch.ddp.hook import Switch, gradwire_hook
from gradwire.torch.ddp.scheduling import Scheduler
from gradwire.torch.ddp.submission import GradScaler

if TYPE_CHECKING:
    from gradwire.codec import Codec

__all__ = ["attach"]

_SWITCH = "_gradwire_switch"
_SAME = Constant()
_COMPRESSIBLE = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def attach(
    model: torch.nn.Module,
    codec: "Codec",
    *,
    schedule: Schedule = _SAME,
    grad_scaler: GradScaler | None = None,
    min_numel: int = 1024,
    min_ndim: int = 1,
    process_group: dist.ProcessGroup | None = None,
    timeout: timedelta | None = None,
) -> Handle:
    """Send a DDP model's gradients compressed. A collective: call it on every rank.

    From the next backward pass on, each bucket is exchanged compressed, started while the backward
    pass goes on: as one all-gather of frames instead of an all-reduce, or however the codec's
    exchange has it. All ranks decode the same bytes in the same order, so replicas stay
    bit-identical. What is not sent stays in a residual, one for each parameter and rank, and is
    sent later.

    Parameters
    ----------
    model : torch.nn.parallel.DistributedDataParallel
        On the CPU, or the result of `torch.compile` on one. No other communication hook may be
        registered on it.
    codec : gradwire.Codec
        Used for all parameters that are compressed.
    schedule : gradwire.schedule.Schedule
        What changes from epoch to epoch; tell it by `Handle.epoch`. By default nothing does.
    grad_scaler : torch.amp.GradScaler, optional
        The one that scales the loss. Residuals are then kept in unscaled units, and if a gradient
        is not finite on some rank, or an average overflows, every gradient of that step becomes
        infinite on every rank and every residual is what it was before the step, so that the
        scaler skips the step everywhere and nothing is lost. Without it, a gradient that is not
        finite is a `GradientError`.
    min_numel : int
        Parameters with fewer entries travel dense, in their own dtype, in the same collective.
    min_ndim : int
        Parameters with fewer dimensions likewise: 2 for all biases and norms, however long.
    process_group : torch.distributed.ProcessGroup, optional
        A group of the model's ranks to use in place of the model's own; of no fewer and no others.
    timeout : datetime.timedelta, optional
        How long to wait for other ranks; that of the process group by default.

    Returns
    -------
    Handle
        To save, restore, report and detach.

    Raises
    ------
    TypeError
        Not a DDP model, or not a codec but a preset that was not called, its name, or one part.
    ValueError
        Parameters that are not on the CPU, a model that has another hook, a process group of other
        ranks than the model's, options that do not go together, a schedule for another kind of
        codec, a codec with ``Residual(low_memory=True)``, which cannot undo a step, or ranks that
        disagree on any of this.

    Notes
    -----
    `attach` makes two process groups, one for buckets and one for messages between steps, and a
    third with the exchanges that add up on the wire. With a model over some ranks only, the others
    have to make as many at the same time, for example by ``new_group([rank],
    use_local_synchronization=True)``: torch names groups by counting.

    Memory: two float32 buffers for each compressed parameter, and slots of compressed size.
    Gradients in float64 are rounded to float32 before they are compressed.
    """
    ddp = _unwrap(model)
    check_codec(codec)
    _check(ddp, grad_scaler)
    _validate.instance("schedule", schedule, SCHEDULES, "gradwire.schedule")
    over = ddp.process_group if process_group is None else process_group
    _check_ranks(ddp.process_group, over)
    named = making.known(ddp)
    sparse = making.sparse(ddp.module)
    dense = {
        name
        for name, each in named.items()
        if each.numel() < min_numel
        or each.ndim < min_ndim
        or each.dtype not in _COMPRESSIBLE
        or id(each) in sparse
    }
    scaled = grad_scaler is not None and grad_scaler.is_enabled()
    shapes = [(name, tuple(each.shape), str(each.dtype)) for name, each in named.items()]
    facts = {
        "codec": codec.get_config(),
        "schedule": schedule.get_config(),
        "grad_scaler": scaled,
        "min_numel or min_ndim": checksum(sorted(dense)),
        "parameters": (len(shapes), checksum(shapes)),
    }
    groups = Groups(over, timeout)
    try:
        group = groups.make()
        agree(group, "attached", facts)
        _check_memory(codec)
        bucket_nbytes = getattr(ddp, "bucket_bytes_cap", None)
        parameters = making.make(named, dense, codec, group.rank(), bucket_nbytes)
        compressed = {each.name: each for each in parameters if each.state is not None}
        scheduler = Scheduler(schedule, compressed, group.rank())
        exchange = build(codec.exchange, group, groups.make, check_result=scaled)
        control = Control(groups.make())
        switch = _switch(ddp, over)
    except BaseException:
        groups.leave()  # a refusal leaves no threads and no sockets behind
        raise
    handle = Handle(
        switch,
        codec,
        parameters,
        exchange,
        scheduler,
        groups,
        control,
        grad_scaler=grad_scaler,
        whole=not getattr(ddp, "skip_all_reduce_unused_params", False),
    )
    switch.process_group = over
    switch.handle = handle
    return handle


def _unwrap(model: torch.nn.Module) -> Any:
    inner = getattr(model, "_orig_mod", model)  # what torch.compile returns
    if not isinstance(inner, DistributedDataParallel):
        raise TypeError(
            "attach() takes a model wrapped in torch.nn.parallel.DistributedDataParallel, "
            f"got {type(inner).__name__}"
        )
    return inner


def _check(model: Any, grad_scaler: GradScaler | None) -> None:
    for name, parameter in model.module.named_parameters():
        if parameter.requires_grad and parameter.device.type != "cpu":
            raise ValueError(
                f"parameter {name!r} is on {parameter.device}: gradwire.torch.ddp handles CPU "
                "tensors only so far"
            )
    if getattr(model, "_use_python_reducer", False):
        raise ValueError(
            'torch._dynamo.config.optimize_ddp = "python_reducer" gives hooks no buckets; set it '
            "to True before the model is wrapped"
        )
    if getattr(model, "mixed_precision", None) is not None:
        raise ValueError("DDP's mixed_precision= registers a hook of its own; use autocast instead")
    if grad_scaler is not None and getattr(model, "skip_all_reduce_unused_params", False):
        raise ValueError(
            "grad_scaler= needs to know where a step ends, which skip_all_reduce_unused_params "
            "hides; use find_unused_parameters instead"
        )
    switch = getattr(model, _SWITCH, None)
    if switch is not None and switch.handle is not None:
        raise ValueError("a codec is attached to this model already; detach() its handle first")
    if switch is None and getattr(model, "_comm_hooks", None):
        raise ValueError("the model has a communication hook already, and DDP takes only one")


def _check_ranks(own: dist.ProcessGroup, over: dist.ProcessGroup) -> None:
    """Refuse to average over other ranks than those whose replicas have to stay equal."""
    expected, given = (sorted(dist.get_process_group_ranks(group)) for group in (own, over))
    if expected != given:
        raise ValueError(
            f"process_group= is of ranks {given}, the model of ranks {expected}: averages over "
            "other ranks than the model's would let its replicas drift apart; wrap the model in "
            "DistributedDataParallel(process_group=...) with the group that you mean"
        )


def _check_memory(codec: "Codec") -> None:
    # Once the ranks agree on the codec, so that it is refused on all of them or on none.
    if isinstance(codec.memory, Residual) and codec.memory.low_memory:
        raise ValueError(
            "a step that fails on any rank is rolled back on all of them, and "
            "gradwire.memory.Residual(low_memory=True) keeps nothing to roll back to; attach a "
            "codec with low_memory=False"
        )


def _switch(model: Any, over: dist.ProcessGroup) -> Switch:
    """Return the model's switch; register it as a hook the first time."""
    switch: Switch | None = getattr(model, _SWITCH, None)
    if switch is None:
        switch = Switch(over)
        try:
            model.register_comm_hook(switch, gradwire_hook)
        except RuntimeError as error:
            raise ValueError(f"the model has a communication hook already ({error})") from error
        setattr(model, _SWITCH, switch)
    return switch
