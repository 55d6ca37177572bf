"""Gradient compression for the Trainer of Transformers.

>>> from gradwire.torch.transformers import Compress
>>> trainer = Trainer(model, arguments, train_dataset=dataset, callbacks=[Compress()])

See `Compress` and ``docs/transformers.md``.
"""

import contextlib
import inspect
import json
import warnings
import weakref
from pathlib import Path
from typing import Any

try:
    from transformers import (
        Trainer,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
except ImportError as error:
    raise ImportError(
        "gradwire.torch.transformers needs Transformers and Accelerate: "
        "pip install 'transformers>=5.18' 'accelerate>=1.3'"
    ) from error

from gradwire.presets import float8
from gradwire.schedule import BySteps, Constant
from gradwire.torch import ddp
from gradwire.torch.accelerate import attach_prepared, computes, is_ddp
from gradwire.torch.auto import AUTO, Automatic, codec_for, least_ratio
from gradwire.torch.checkpoint import files as rank_files
from gradwire.torch.checkpoint.format import Policy
from gradwire.torch.engine.config import Codecs
from gradwire.torch.engine.pairing import default_codec, name_of
from gradwire.torch.optim import family_of

__all__ = ["Compress"]


class Compress(TrainerCallback):
    """Compresses the gradients of a Trainer that runs DistributedDataParallel.

    It attaches the codec when training begins, with Trainer's optimizer and loss scaler; writes the
    state of every rank into each checkpoint, and reads it back when training resumes; calls
    `gradwire.torch.ddp.Handle.epoch` for schedules; and adds figures to Trainer's logs.

    If the codec sends updates or applies momentum, and ``max_grad_norm`` is not 0, each rank clips
    its own gradients before they are exchanged, in the optimizer's step. Otherwise Trainer clips
    the exchanged gradients.

    Parameters
    ----------
    codec : gradwire.Codec, str, or mapping of str to (gradwire.Codec, str or None), optional
        As in `gradwire.torch.ddp.attach`. Where Trainer's loss scaler (``fp16=True``) keeps it from
        clipping gradients before they are exchanged, the default is `gradwire.float8`, and
        ``"auto"`` then chooses among codecs that send gradients whenever Trainer clips.
    policy : {"sum-and-split", "keep", "drop"}
        What to do with residuals if training resumes with another number of processes; as in
        `gradwire.torch.ddp.Handle.load_state_dict`.
    log : bool
        Add the figures of `gradwire.torch.ddp.Handle.metrics` to the logs of training steps, as
        ``gradwire/compression`` and so on. They count from the beginning of this run.
    **options
        Further options of `gradwire.torch.ddp.attach`, such as ``schedule``, ``min_numel``, or
        ``min_ratio`` for ``"auto"``.

    Attributes
    ----------
    handle : gradwire.torch.ddp.Handle or None
        None before training, and if there is only one process. It stays attached after training,
        so that another call of `Trainer.train` continues with its residuals.

    Raises
    ------
    TypeError, ValueError
        The codec is not valid, or a dict of incompatible codecs.

    Warns
    -----
    RuntimeWarning
        When training begins: there is only one process; the checkpoint has no residuals; or Trainer
        writes checkpoints without calling this callback.

    Notes
    -----
    `Trainer.train` raises what `gradwire.torch.ddp.attach` does, for example a ValueError if the
    codec needs another optimizer.
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
        self._codec = codec
        if codec == AUTO:
            least_ratio(options.get("min_ratio"))
        elif codec is not None:
            computes(codec)  # which raises what is wrong with it
        self._policy = policy
        self._log = log
        self._options = options
        self._trainer: Any = None  # weak references
        self._attached_to: tuple[Any, ...] = ()
        self._first_epoch = self._next_epoch = 0
        self._attached: Any = None  # the codec, or what "auto" may choose
        self._clips = False
        self._until_step = contextlib.ExitStack()

    # What Trainer calls ------------------------------------------------------------------------

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Attach, and restore what a checkpoint holds."""
        trainer, resumed_from = _caller()
        callbacks = trainer.callback_handler.callbacks
        callbacks.remove(self)
        callbacks.insert(0, self)  # before those that write logs
        self._until_step.close()
        kept = self._attach(trainer)
        if self.handle is None:
            return
        if getattr(args, "enable_jit_checkpoint", False):
            _warn(
                "with enable_jit_checkpoint, Trainer saves without telling its callbacks: such "
                "checkpoints will have no residuals"
            )
        restored = False
        if resumed_from is not None:
            restored = rank_files.load(self.handle, Path(resumed_from), self._policy)
            if not restored:
                _warn(
                    f"{resumed_from} has no residuals, because it was saved without Compress or "
                    "with save_only_model: they start from zero"
                )
        self._count_epochs(state, restored=restored, kept=kept)
        self._next_epoch = self._first_epoch + int(state.epoch or 0)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Advance the schedule."""
        if self.handle is not None and self._scheduled:
            # Counted, because the epoch of data without a length is a fraction of all steps.
            self.handle.epoch(self._next_epoch)
            self._next_epoch += 1

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keep the gradients on this rank, if they must be clipped before they are sent."""
        if self._clips:
            self._until_step.close()
            self._until_step.enter_context(self._trainer().model_wrapped.no_sync())

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Let the optimizer exchange the gradients."""
        self._until_step.close()
        if self.handle is not None and not args.max_grad_norm > 0:
            self.handle.accept_changes()  # to log the norm, Trainer multiplies gradients by 1

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stop compressing backward passes: training may have ended within a step."""
        self._until_step.close()

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
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

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add figures to the logs of training steps."""
        if self.handle is None or not self._log or logs is None or "loss" not in logs:
            return
        figures = {f"gradwire/{name}": each for name, each in self.handle.metrics().items()}
        logs.update(figures)
        state.log_history[-1].update(figures)

    # How it does that --------------------------------------------------------------------------

    @property
    def _scheduled(self) -> bool:
        """Whether the schedule needs `Handle.epoch`, and does not advance by itself."""
        schedule = self._options.get("schedule")
        return schedule is not None and not isinstance(schedule, Constant | BySteps)

    def _attach(self, trainer: Trainer) -> bool:
        """Attach, unless attached; return whether the handle of an earlier run is reused."""
        clips = trainer.args.max_grad_norm > 0
        # By whether Trainer clips, "auto" has another choice.
        parts = trainer.model_wrapped, trainer.optimizer
        to = (*map(weakref.ref, parts), clips and self._codec == AUTO)
        kept = self.handle is not None and self._attached_to == to
        options = dict(self._options)
        if not kept:
            self._attached = self._choose(trainer, options, clips=clips)
        computing = self._check(trainer, clips=clips)
        if not kept:
            if self.handle is not None:
                self.handle.detach()
                self.handle = None
            self.handle = attach_prepared(
                trainer.accelerator,
                trainer.model_wrapped,
                self._attached,
                trainer.optimizer,
                **options,
            )
        self._trainer, self._attached_to = weakref.ref(trainer), to
        self._clips = clips and computing and self.handle is not None
        return kept

    def _choose(self, trainer: Trainer, options: dict[str, Any], *, clips: bool) -> Any:
        """Return the codec to attach, by default one for the optimizer and Trainer's clipping."""
        optimizer = _optimizer_of(trainer)
        if not is_ddp(trainer.model_wrapped) or self._codec not in (None, AUTO):
            return self._codec
        if self._codec == AUTO:
            return codec_for(optimizer, options.pop("min_ratio", None), clips=clips)
        if clips and trainer.accelerator.scaler is not None:
            _warn(
                "fp16=True and max_grad_norm prevent clipping before the exchange, so gradients "
                "are sent as gradwire.float8(), with a quarter of the bytes: use bf16=True, or "
                "max_grad_norm=0.0"
            )
            return float8()
        return default_codec(optimizer)

    def _check(self, trainer: Trainer, *, clips: bool) -> bool:
        """Tell whether the codec sends updates; raise a ValueError if Trainer must be changed."""
        if not is_ddp(trainer.model_wrapped) or isinstance(self._attached, Automatic):
            return False
        optimizer = _optimizer_of(trainer)
        family, name = family_of(optimizer), name_of(optimizer)
        computing = computes(self._attached)
        for memory in computing:
            if memory.updates and family != "adam":
                raise ValueError(
                    f"{memory!r} sends steps, which only torch.optim.AdamW applies, but this "
                    f'Trainer has {name}: set optim="adamw_torch", or leave the codec out'
                )
        if computing and clips and family is None:
            raise ValueError(
                f"with {computing[0]!r} and max_grad_norm, gradients are clipped before they are "
                f"exchanged, in the step of torch.optim.SGD or AdamW, but this Trainer has {name}: "
                'set optim="adamw_torch" or "sgd", or max_grad_norm=0.0'
            )
        if computing and clips and trainer.accelerator.scaler is not None:
            raise ValueError(
                f"with {computing[0]!r}, gradients are clipped before they are exchanged, which "
                "does not work with the loss scaler of fp16=True: use bf16=True, or "
                "max_grad_norm=0.0"
            )
        return bool(computing)

    def _count_epochs(self, state: TrainerState, *, restored: bool, kept: bool) -> None:
        """Find the number of Trainer's first epoch: those of an earlier run go before it."""
        self._first_epoch = 0
        if self.handle is None or not self._scheduled or not (restored or kept):
            return
        (saved,) = self.handle.state_dict().values()
        begun = int(json.loads(saved["about"])["schedule"]["epoch"])
        position = float(state.epoch or 0.0)
        within = restored and position % 1.0 != 0.0
        self._first_epoch = begun - int(position) + (0 if within else 1)


def _caller() -> tuple[Trainer, str | None]:
    """Return the running trainer, and the checkpoint from which it resumes, from the stack."""
    frame = inspect.currentframe()
    while frame is not None:
        trainer = frame.f_locals.get("self")
        if isinstance(trainer, Trainer) and "resume_from_checkpoint" in frame.f_locals:
            return trainer, frame.f_locals["resume_from_checkpoint"]
        frame = frame.f_back
    raise RuntimeError("Compress is a callback of Trainer: Trainer(..., callbacks=[Compress(...)])")


def _optimizer_of(trainer: Trainer) -> Any:
    """Return the optimizer of a trainer, unwrapped from Accelerate's."""
    return getattr(trainer.optimizer, "optimizer", trainer.optimizer)


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=3)
