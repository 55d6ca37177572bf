"""Gradient compression for programs that use Accelerate.

>>> model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
>>> handle = gradwire.torch.accelerate.attach(accelerator, model, optimizer=optimizer)

The training loop does not change. See `attach` and ``docs/accelerate.md``.
"""

import warnings
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch.nn.parallel import DistributedDataParallel

from gradwire.memory import Memory
from gradwire.torch import ddp
from gradwire.torch.auto import AUTO, Automatic
from gradwire.torch.checkpoint import files as rank_files
from gradwire.torch.checkpoint.format import Policy
from gradwire.torch.engine.config import Assignment, Codecs
from gradwire.torch.engine.pairing import default_codec

try:
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer
    from accelerate.utils import DistributedType
except ImportError as error:
    raise ImportError(
        "gradwire.torch.accelerate needs Accelerate: pip install 'accelerate>=1.3'"
    ) from error

__all__ = ["attach"]

_REGISTERED = "_gradwire_registered"
_NOT_DDP = (
    DistributedType.DEEPSPEED,
    DistributedType.FSDP,
    DistributedType.MEGATRON_LM,
    DistributedType.XLA,
)


def attach(
    accelerator: Accelerator,
    model: torch.nn.Module,
    codec: Codecs | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    policy: Policy = "sum-and-split",
    **options: Any,
) -> ddp.Handle | None:
    """Compress the gradients of a model that Accelerate has prepared. A collective.

    Call it after ``accelerator.prepare``, on every process. It takes the scaler from the
    accelerator and the optimizer out of Accelerate's, and registers the state of all ranks for
    ``accelerator.save_state`` and ``load_state``.

    Parameters
    ----------
    accelerator : accelerate.Accelerator
    model : torch.nn.Module
        What ``accelerator.prepare`` returned.
    codec : gradwire.Codec, str, or mapping of str to (gradwire.Codec, str or None), optional
        As in `gradwire.torch.ddp.attach`.
    optimizer : torch.optim.Optimizer, optional
        The optimizer of the model, prepared or not; as in `gradwire.torch.ddp.attach`.
    policy : {"sum-and-split", "keep", "drop"}
        What ``load_state`` does with residuals if the number of processes has changed; as in
        `gradwire.torch.ddp.Handle.load_state_dict`.
    **options
        Further options of `gradwire.torch.ddp.attach`, such as ``schedule``, ``min_numel``, or
        ``min_ratio`` for ``"auto"``.

    Returns
    -------
    Handle or None
        As from `gradwire.torch.ddp.attach`; None if there is only one process, which sends nothing.

    Raises
    ------
    TypeError
        ``accelerator`` is not an Accelerator, or ``model`` was not prepared by it. Also as in
        `gradwire.torch.ddp.attach`.
    ValueError
        Accelerate trains the model with something other than DDP, such as FSDP or DeepSpeed, or
        exchanges every accumulated pass (``sync_each_batch=True``), and the codec sends updates or
        applies momentum. Also as in `gradwire.torch.ddp.attach`.

    Warns
    -----
    RuntimeWarning
        There is only one process.

    Notes
    -----
    ``save_state`` gathers the residuals of all ranks on the main process, which needs the memory
    and writes them to one file. With ``save_on_each_node=True`` every process needs it.
    """
    if not isinstance(accelerator, Accelerator):
        raise TypeError(
            "attach() takes the Accelerator first: attach(accelerator, model, codec, "
            f"optimizer=optimizer); got {type(accelerator).__name__}"
        )
    handle = attach_prepared(accelerator, model, codec, optimizer, stacklevel=3, **options)
    registered = getattr(model, _REGISTERED, None)
    if registered is not None and registered.accelerator is accelerator:
        registered.handle, registered.policy = handle, policy  # of an earlier attach()
    else:
        registered = _Registered(accelerator, handle, policy)
        accelerator.register_for_checkpointing(registered)
        setattr(model, _REGISTERED, registered)
    return handle


def attach_prepared(
    accelerator: Accelerator,
    model: torch.nn.Module,
    codec: Codecs | Automatic | None,
    optimizer: torch.optim.Optimizer | None,
    *,
    stacklevel: int = 2,
    **options: Any,
) -> ddp.Handle | None:
    """Attach to a model, with the scaler of its accelerator; or warn that there is one process."""
    if not is_ddp(model):
        if accelerator.distributed_type in _NOT_DDP:
            raise ValueError(
                f"Accelerate trains this model with {accelerator.distributed_type.value}; gradwire "
                "compresses the gradients of DistributedDataParallel"
            )
        if accelerator.use_distributed:
            raise TypeError(
                "attach() takes the model that accelerator.prepare() returned, got "
                f"{type(model).__name__}"
            )
        warnings.warn(
            "there is only one process, so no gradients are sent and nothing is compressed. Start "
            "several, for example with torchrun --nproc-per-node=2",
            RuntimeWarning,
            stacklevel=stacklevel,
        )
        return None
    while isinstance(optimizer, AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    if codec is None:
        codec = default_codec(optimizer)
    # "auto" sees such passes, and does without a codec that sends updates.
    computing = [] if codec == AUTO or isinstance(codec, Automatic) else computes(codec)
    if computing and accelerator.gradient_state.plugin_kwargs.get("sync_each_batch"):
        raise ValueError(
            "sync_each_batch=True exchanges every pass and adds the results up, but a gradient "
            f"cannot be added to what {computing[0]!r} sends: leave sync_each_batch out"
        )
    codec = cast(Codecs, codec)
    return ddp.attach(model, codec, optimizer=optimizer, grad_scaler=accelerator.scaler, **options)


def is_ddp(model: torch.nn.Module) -> bool:
    """Tell whether this is a DDP model, or the result of `torch.compile` on one."""
    return isinstance(getattr(model, "_orig_mod", model), DistributedDataParallel)


def computes(codec: Codecs) -> list[Memory]:
    """Return the memories that do not send gradients."""
    memories = [each.memory for each in Assignment(codec).codecs]
    return [memory for memory in memories if memory.updates or memory.corrects]


class _Registered:
    """The state of all ranks, for Accelerate, which writes what the main process has.

    A single process has none; its checkpoints and those of several can be loaded by either.
    """

    def __init__(self, accelerator: Accelerator, handle: ddp.Handle | None, policy: Policy) -> None:
        self.accelerator = accelerator
        self.handle = handle
        self.policy = policy

    def __reduce__(self) -> tuple[Any, ...]:
        return _unregistered, ()  # a copy of the model is not attached

    def state_dict(self) -> dict[str, Any]:
        if self.handle is None:
            return {}
        to = None if self.accelerator.project_configuration.save_on_each_node else 0
        if not self.handle.attached:  # after training: its groups are gone
            return rank_files.gathered(self.handle.state_dict(), to)
        return self.handle.gathered_state_dict(to)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        if self.handle is not None and state_dict:
            self.handle.load_state_dict(state_dict, self.policy)
        elif self.handle is not None:
            _warn_of_loss("the checkpoint was saved by one process: residuals start from zero")
        elif state_dict:
            _warn_of_loss(f"the residuals of {len(state_dict)} ranks are not loaded by one process")


def _unregistered() -> None:
    """Return what a copied model has registered: nothing."""


def _warn_of_loss(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=5)
