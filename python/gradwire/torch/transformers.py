"""A callback for the Trainer of Transformers. See `Compress` and ``docs/transformers.md``.

>>> from gradwire.torch.transformers import Compress
>>> trainer = Trainer(model, arguments, train_dataset=dataset, callbacks=[Compress()])
"""

import contextlib
import inspect
import weakref
from pathlib import Path
from typing import Any

try:
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
except ImportError as error:
    raise ImportError(
        "gradwire.torch.transformers needs: pip install 'transformers>=5.18' 'accelerate>=1.3'"
    ) from error

from gradwire.torch import ddp
from gradwire.torch.accelerate import attach_prepared
from gradwire.torch.auto import clipped
from gradwire.torch.checkpoint import files as rank_files
from gradwire.torch.checkpoint.format import Policy
from gradwire.torch.ddp.attachment import is_ddp
from gradwire.torch.engine.config import Codecs
from gradwire.torch.errors import warn

__all__ = ["Compress"]


class Compress(TrainerCallback):
    """Compress the gradients of a Trainer with DDP, by `gradwire.torch.ddp.attach`.

    If the codec sends updates or momentum and ``max_grad_norm`` is not 0, each rank clips its own
    gradients, and the optimizer's step exchanges them. Each rank writes its state into Trainer's
    checkpoints. `Trainer.train` raises what `attach` does, and a ValueError where it cannot clip.

    Parameters
    ----------
    codec : gradwire.Codec, str, mapping of str to (gradwire.Codec, str or None), or list, optional
        As in `attach`. Without one, `gradwire.float8` where a scaler prevents clipping in the step.
    policy : {"sum-and-split", "keep", "drop"}
        As in `gradwire.torch.ddp.Handle.load_state_dict`, for a checkpoint of other ranks.
    log : bool
        Add `gradwire.torch.ddp.Handle.metrics` to the logs, as ``gradwire/wire_bytes`` and so on.
    **options
        Further options of `attach`, such as ``schedule``, or ``min_ratio`` for ``"auto"``.

    Attributes
    ----------
    handle : gradwire.torch.ddp.Handle or None
        None before training, and if there is only one process. It stays attached after training,
        so that another call of `Trainer.train` continues with its residuals.
    """

    def __init__(
        self,
        codec: Codecs | None = None,
        *,
        policy: Policy = "sum-and-split",
        log: bool = True,
        **options: Any,
    ) -> None:
        self.handle: ddp.Handle | None = None
        self._codec, self._policy, self._log, self._options = codec, policy, log, options
        self._trainer: Any = None  # weak references
        self._attached_to: tuple[Any, ...] = ()
        self._in_step, self._epoch = False, 0
        self._local = contextlib.ExitStack()  # while gradients stay on their ranks until the step

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Attach, and restore what a checkpoint holds."""
        trainer, checkpoint = _caller()
        callbacks = trainer.callback_handler.callbacks
        callbacks.remove(self)
        callbacks.insert(0, self)  # before those that write logs
        self._local.close()
        kept = self._attach(trainer)
        if self.handle is None:
            return
        if getattr(args, "enable_jit_checkpoint", False):
            warn("checkpoints of enable_jit_checkpoint will have no residuals", RuntimeWarning)
        restored = checkpoint and rank_files.load(self.handle, Path(checkpoint), self._policy)
        if checkpoint and not restored:
            warn(f"{checkpoint} has no residuals: they start from zero", RuntimeWarning)
        # Counted, because the epoch of data without a length is a fraction of all steps.
        self._epoch = int(state.epoch or 0)
        if kept or restored:  # go on after the last epoch, or within it
            ended = not restored or float(state.epoch or 0.0) % 1.0 == 0.0
            self._epoch = self.handle._scheduler.epoch + ended

    def _attach(self, trainer: Trainer) -> bool:
        """Attach, unless attached; return whether the handle of an earlier run goes on."""
        model, optimizer, clips = trainer.model_wrapped, trainer.optimizer, _clips(trainer.args)
        to = (weakref.ref(model), weakref.ref(optimizer), clips)
        self._trainer = weakref.ref(trainer)
        if self.handle is not None and self._attached_to == to:
            return True
        if self.handle is not None:
            self.handle.detach()
        self.handle, self._in_step = None, False
        codec, options = self._codec, dict(self._options)
        if clips and is_ddp(model):
            inner = getattr(optimizer, "optimizer", optimizer)  # Accelerate's wraps it
            scaler = trainer.accelerator.scaler
            codec, self._in_step = clipped(codec, inner, scaler, options)
        self.handle = attach_prepared(trainer.accelerator, model, codec, optimizer, **options)
        self._attached_to = to
        return False

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Advance the schedule."""
        if self.handle is not None and self._options.get("schedule") is not None:
            self.handle.epoch(self._epoch)
            self._epoch += 1

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keep the gradients on this rank, if they must be clipped before they are sent."""
        if self._in_step:
            self._local.close()
            self._local.enter_context(self._trainer().model_wrapped.no_sync())

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Let the optimizer exchange the gradients."""
        self._local.close()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop keeping gradients: training may have ended within a step."""
        self._local.close()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write this rank's state to Trainer's checkpoint folder."""
        if self.handle is None or args.save_only_model:
            return
        trainer = self._trainer()
        run = Path(trainer._get_output_dir(getattr(trainer, "_trial", None)))
        folder = run / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        try:
            rank_files.save(self.handle, folder)
        except (OSError, RuntimeError):
            if folder.is_dir():
                raise  # else Trainer has removed it already, for its save_total_limit

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Add figures to the logs of training steps."""
        if self.handle is not None and self._log and logs is not None and "loss" in logs:
            figures = {f"gradwire/{name}": figure for name, figure in self.handle.metrics().items()}
            logs.update(figures)
            state.log_history[-1].update(figures)


def _clips(args: Any) -> bool:
    return bool(args.max_grad_norm > 0)


def _caller() -> tuple[Trainer, str | None]:
    """Return the running trainer, and the checkpoint from which it resumes, from the stack."""
    frame = inspect.currentframe()
    while frame is not None:
        trainer = frame.f_locals.get("self")
        if isinstance(trainer, Trainer) and "resume_from_checkpoint" in frame.f_locals:
            return trainer, frame.f_locals["resume_from_checkpoint"]
        frame = frame.f_back
    raise RuntimeError("Compress is a callback of Trainer: Trainer(..., callbacks=[Compress(...)])")
