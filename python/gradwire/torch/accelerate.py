"""Gradient compression for programs that use Accelerate. See ``docs/accelerate.md``.

>>> model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
>>> handle = gradwire.torch.accelerate.attach(accelerator, model, optimizer=optimizer)
"""

from collections.abc import Mapping
from typing import Any

import torch

try:
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer
except ImportError as error:
    raise ImportError("gradwire.torch.accelerate needs: pip install 'accelerate>=1.3'") from error

from gradwire.torch import ddp
from gradwire.torch.checkpoint import files as rank_files
from gradwire.torch.checkpoint.format import Policy
from gradwire.torch.ddp.attachment import is_ddp
from gradwire.torch.engine.config import Optimizers
from gradwire.torch.errors import warn

__all__ = ["attach"]


def attach(
    accelerator: Accelerator,
    model: torch.nn.Module,
    codec: Any = None,
    optimizer: Optimizers | None = None,
    *,
    policy: Policy = "sum-and-split",
    **options: Any,
) -> ddp.Handle | None:
    """Compress the gradients of a model that Accelerate has prepared. A collective.

    Calls `gradwire.torch.ddp.attach` with the scaler of the accelerator, and registers the state of
    all ranks for ``accelerator.save_state`` and ``load_state``. The main process needs memory for
    it, with ``save_on_each_node=True`` every process.

    Parameters
    ----------
    accelerator : accelerate.Accelerator
    model : torch.nn.Module
        What ``accelerator.prepare`` returned.
    codec : gradwire.Codec, str, mapping of str to (gradwire.Codec, str or None), or list, optional
        As in `gradwire.torch.ddp.attach`.
    optimizer : torch.optim.Optimizer or list of those, optional
        The optimizer of the model, prepared or not; as in `gradwire.torch.ddp.attach`.
    policy : {"sum-and-split", "keep", "drop"}
        What ``load_state`` does with residuals if the number of processes has changed; as in
        `gradwire.torch.ddp.Handle.load_state_dict`.
    **options
        Further options of `gradwire.torch.ddp.attach`, such as ``schedule`` or ``min_ratio``.

    Returns
    -------
    Handle or None
        As from `gradwire.torch.ddp.attach`, as are the errors; None, with a RuntimeWarning, if
        there is only one process, which sends nothing.
    """
    handle = attach_prepared(accelerator, model, codec, optimizer, **options)
    for state in accelerator._custom_objects:
        if isinstance(state, _State) and state.model is model:  # of an earlier attach()
            state.handle, state.policy = handle, policy
            return handle
    accelerator.register_for_checkpointing(_State(accelerator, model, handle, policy))
    return handle


def attach_prepared(
    accelerator: Accelerator,
    model: torch.nn.Module,
    codec: Any,
    optimizer: Optimizers | None,
    **options: Any,
) -> ddp.Handle | None:
    """Attach to a model, with the scaler of its accelerator; or warn that there is one process."""
    if not is_ddp(model) and not accelerator.use_distributed:
        warn("there is only one process, so no gradients are sent or compressed", RuntimeWarning)
        return None
    given, scaler = _given(optimizer), accelerator.scaler
    return ddp.attach(model, codec, given, grad_scaler=scaler, **options)


def _given(optimizer: Any) -> Any:
    """Return the optimizer that Accelerate has wrapped, or a list of those."""
    if isinstance(optimizer, list | tuple):
        return [_given(each) for each in optimizer]
    return _given(optimizer.optimizer) if isinstance(optimizer, AcceleratedOptimizer) else optimizer


class _State:
    """The state of all ranks, for Accelerate, which writes what the main process has."""

    def __init__(
        self,
        accelerator: Accelerator,
        model: torch.nn.Module,
        handle: ddp.Handle | None,
        policy: Policy,
    ) -> None:
        self.accelerator, self.model = accelerator, model
        self.handle, self.policy = handle, policy

    def state_dict(self) -> dict[str, Any]:
        to = None if self.accelerator.project_configuration.save_on_each_node else 0
        return {} if self.handle is None else rank_files.gathered(self.handle, to)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore the states, or warn that there are none, or none is needed."""
        if self.handle is not None and state_dict:
            self.handle.load_state_dict(state_dict, self.policy)
        elif self.handle is not None:
            text = "the checkpoint was saved by one process: residuals start from zero"
            warn(text, RuntimeWarning)
        elif state_dict:
            text = f"the residuals of {len(state_dict)} ranks are not loaded by one process"
            warn(text, RuntimeWarning)
