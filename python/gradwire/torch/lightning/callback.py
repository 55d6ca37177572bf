"""The callback: attaches a codec during a fit, following the Trainer's hooks."""

import contextlib
import os
import secrets
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args

from torch.nn.parallel import DistributedDataParallel

from gradwire.presets import float8
from gradwire.schedule import Schedule
from gradwire.torch import ddp
from gradwire.torch.auto import AUTO, check_alone, least_ratio
from gradwire.torch.checkpoint import files as rank_files
from gradwire.torch.engine.config import Codecs, Options
from gradwire.torch.lightning import pairing, saving
from gradwire.torch.lightning.pairing import Callback, LightningModule, Trainer
from gradwire.torch.lightning.saving import Policy

_PATIENCE = timedelta(seconds=5)


class Compress(Callback):
    """Compress the gradients of a Trainer that runs with a DDP strategy.

    During ``trainer.fit`` a codec is attached with `gradwire.torch.ddp.attach`, the Trainer's
    optimizer and the scaler of its precision plugin. The schedule follows the Trainer's epochs.
    Residuals of all ranks are saved in the Trainer's checkpoints and restored from them. Figures of
    the report go to the Trainer's loggers. With another strategy, or on a single device, nothing is
    compressed, and a warning says so.

    Parameters
    ----------
    codec : gradwire.Codec, str, or mapping of str to (gradwire.Codec, str or None), optional
        As in `gradwire.torch.ddp.attach`, with names as in the module's ``named_parameters()``. If
        the Trainer clips exchanged gradients, the default is `gradwire.float8`. With ``"auto"``,
        `report` shows the fastest setting, and why.
    min_ratio : float, optional
        The ratio of the codec that ``"auto"`` tries, in (0, 1]; 0.01 by default.
    schedule : gradwire.schedule.Schedule, optional
        Changes the compression from epoch to epoch, as in `gradwire.torch.ddp.attach`.
    optimizer : {"auto", None}
        With ``"auto"``, the module's optimizer is also attached if it has exactly one: it is
        checked, and gradients that it does not apply are removed from the residuals. With None, no
        optimizer is attached.
    min_numel, min_ndim : int
        Parameters with fewer entries or dimensions are sent uncompressed.
    timeout : datetime.timedelta, optional
        How long to wait for other ranks. Defaults to the timeout of the strategy.
    hierarchy : int or "node", optional
        Compress between nodes only: the number of ranks per node, or ``"node"`` for the devices
        that the Trainer has on each.
    exchange_in_step : bool, optional
        Exchange gradients in the optimizer's ``step()`` instead of the backward pass. The Trainer's
        ``gradient_clip_val`` then clips each rank's own gradients, before they are compressed. This
        requires torch's AdamW, Adam or SGD, automatic optimization and no scaler. By default it is
        enabled if the Trainer clips, these requirements are met, and the codec sends updates
        instead of gradients.
    low_memory
        As in `gradwire.torch.ddp.attach`.
    policy : {"sum-and-split", "keep", "drop"}
        What to do with the residuals of a checkpoint of another number of ranks, as in
        `gradwire.torch.ddp.Handle.load_state_dict`.
    checkpoints : bool, str or pathlib.Path
        Whether the residuals of all ranks are saved in the Trainer's checkpoints. Rank 0 needs
        memory for all of them while writing, and each rank while reading. With a folder, each rank
        writes its own into a file there, and the checkpoint has only its name. Files are not
        removed with their checkpoints. If False, a resumed run starts without.
    rate : bool
        Tell the schedule the learning rate of each epoch; `gradwire.schedule.Accordion` uses it.
    log : bool
        Log the figures of `gradwire.torch.ddp.Handle.metrics`, those of rank 0, every
        ``log_every_n_steps`` steps, as ``gradwire/wire_bytes`` and so on.

    Attributes
    ----------
    handle : gradwire.torch.ddp.Handle or None
        The handle of the present fit, or, detached, of the last one.

    Raises
    ------
    TypeError, ValueError
        The codec, the schedule or an option is invalid; ``trainer.fit`` raises the errors of
        `gradwire.torch.ddp.attach`.
    """

    def __init__(
        self,
        codec: Codecs | None = None,
        *,
        min_ratio: float | None = None,
        schedule: Schedule | None = None,
        optimizer: Literal["auto"] | None = "auto",
        min_numel: int = 1024,
        min_ndim: int = 1,
        timeout: timedelta | None = None,
        hierarchy: int | Literal["node"] | None = None,
        exchange_in_step: bool | None = None,
        low_memory: bool | None = None,
        policy: Policy = "sum-and-split",
        checkpoints: bool | str | os.PathLike[str] = True,
        rate: bool = False,
        log: bool = True,
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {
            "schedule": schedule,
            "min_numel": min_numel,
            "min_ndim": min_ndim,
            "low_memory": low_memory,
        }
        if codec in (None, AUTO) and optimizer is None:
            raise ValueError(
                f"Compress({'' if codec is None else repr(codec)}) chooses the codec that suits "
                'the optimizer: leave optimizer="auto"'
            )
        if codec == AUTO:
            check_alone(schedule, hierarchy)
            least_ratio(min_ratio)
        elif min_ratio is not None:
            raise ValueError('min_ratio= is the ratio of the codec of "auto": leave it out')
        # Whichever is chosen for the optimizer.
        Options(codec=float8() if codec in (None, AUTO) else codec, **options)
        if optimizer not in ("auto", None):
            raise TypeError(
                'optimizer= takes "auto", for what configure_optimizers() returns, or None, got '
                f"{optimizer!r}"
            )
        if policy not in get_args(Policy):
            raise ValueError(f"policy must be one of {get_args(Policy)}, got {policy!r}")
        if hierarchy not in (None, "node") and (
            isinstance(hierarchy, bool) or not isinstance(hierarchy, int)
        ):
            raise TypeError(
                'hierarchy= takes the number of ranks per node, or "node" for the devices that the '
                "Trainer has on each: a mesh or process groups cannot exist before the Trainer has "
                f"started; got {hierarchy!r}"
            )
        if exchange_in_step and optimizer is None:
            raise ValueError('exchange_in_step=True needs an optimizer: leave optimizer="auto"')
        self.log_dict: Any  # the Trainer sets it
        self.codec = codec
        self.handle: ddp.Handle | None = None
        self._options: dict[str, Any] = {**options, "timeout": timeout}
        self._hierarchy = hierarchy
        self._optimizer = optimizer
        self._exchange_in_step, self._in_step = exchange_in_step, False
        self._min_ratio = min_ratio
        self._policy: Policy = policy
        self._checkpoints = checkpoints is not False
        self._folder = None if isinstance(checkpoints, bool) else Path(checkpoints).absolute()
        self._run = ""
        self._rate = rate
        self._log = log
        self._attached = False
        self._interrupted = self._lacking = False
        self._loaded: saving.Loaded | None = None
        self._held = contextlib.ExitStack()

    def report(self, *, reset: bool = False, residuals: bool = True) -> ddp.Report:
        """Return the report of this rank, of the present fit or the last one.

        Parameters
        ----------
        reset, residuals : bool
            As in `gradwire.torch.ddp.Handle.report`.

        Raises
        ------
        ValueError
            Nothing has been compressed in this process.
        """
        if self.handle is None:
            raise ValueError(
                "there is no report: no fit with a DDP strategy has begun in this process. With "
                '"ddp_spawn" and "ddp_fork", the report is in the processes that trained'
            )
        return self.handle.report(reset=reset, residuals=residuals)

    @property
    def state_key(self) -> str:
        """The key in checkpoints by which Lightning detects that the callback is missing."""
        return "gradwire.torch.lightning.Compress"

    # A fit ------------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start without the state of an earlier fit."""
        self._loaded = None
        self._interrupted = self._lacking = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach. The model is wrapped by now, and there are optimizers."""
        self.handle = None
        model: Any = trainer.model
        if not isinstance(getattr(model, "_orig_mod", model), DistributedDataParallel):
            kind = type(trainer.strategy).__name__
            _warn(
                f"the Trainer runs with {kind} on {trainer.world_size} device(s), without a "
                "DistributedDataParallel model to which Compress could attach: nothing is "
                'compressed. Use Trainer(strategy="ddp", devices=...) to compress'
            )
            return
        found = pairing.find(
            trainer,
            pl_module,
            self.codec,
            self._optimizer,
            in_step=self._exchange_in_step,
            min_ratio=self._min_ratio,
        )
        self._in_step = found.in_step
        with warnings.catch_warnings():
            if found.optimizer is None:  # either wanted, or said in other words
                warnings.filterwarnings("ignore", "attach.. was given no", ddp.PairingWarning)
            self.handle = ddp.attach(
                model,
                found.codec,
                optimizer=found.optimizer,
                grad_scaler=found.scaler,
                hierarchy=self._ranks_per_node(trainer),
                **self._options,
            )
        self._attached = True
        if self._folder is not None:
            self._run = trainer.strategy.broadcast(secrets.token_hex(4))

    def _ranks_per_node(self, trainer: Trainer) -> int | None:
        # LOCAL_WORLD_SIZE is not set by the Trainer's own launcher.
        return trainer.num_devices if self._hierarchy == "node" else self._hierarchy

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore. The Trainer has restored everything else by now."""
        loaded, self._loaded = self._loaded, None
        if self.handle is None:
            return
        if loaded is not None:
            loaded.into(self.handle, self._policy)
        elif self._lacking and self._checkpoints:
            _warn(
                f"{trainer.ckpt_path} has no residuals, because it was saved without Compress, or "
                "after an exception without the other ranks: they start from zero"
            )
        if self._in_step:
            model: Any = trainer.model
            self._held.enter_context(model.no_sync())

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Advance the schedule."""
        if self.handle is not None:
            rate = trainer.optimizers[0].param_groups[0]["lr"] if self._rate else None
            self.handle.epoch(trainer.current_epoch, None if rate is None else float(rate))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log figures, in the steps in which the Trainer writes any."""
        if self.handle is None or not self._log:
            return
        if trainer._logger_connector.should_update_logs:
            figures = {f"gradwire/{name}": value for name, value in self.handle.metrics().items()}
            self.log_dict(figures, on_step=True, on_epoch=False)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop compressing backward passes."""
        self._held.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Disconnect from the other ranks, which may be waiting for this one."""
        self._interrupted = True
        self._detach()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Detach. Residuals stay with the handle, for checkpoints after the fit."""
        self._detach()

    def _detach(self) -> None:
        self._held.close()
        attached, self._attached = self._attached, False
        if attached and self.handle is not None:
            self.handle.detach()

    # Checkpoints ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return a non-empty dict, so that Lightning warns if the callback is missing on resume."""
        return {} if self.handle is None else {"codec": repr(self.codec)}

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Put the states of all ranks into the checkpoint, which rank 0 writes. A collective."""
        if self.handle is None or not self._checkpoints:
            return
        if self._folder is not None:
            name = f"step={trainer.global_step}-{self._run}"
            checkpoint[saving.KEY] = saving.written(self.handle, self._folder, name)
        elif self._attached:
            checkpoint[saving.KEY] = self.handle.gathered_state_dict()
        elif not self._interrupted:
            checkpoint[saving.KEY] = rank_files.gathered(self.handle.state_dict())
        else:  # the other ranks may not be there
            try:
                states = rank_files.gathered(self.handle.state_dict(), timeout=_PATIENCE)
            except (RuntimeError, ValueError, ddp.ExchangeError) as error:
                _warn(
                    "the checkpoint written after the exception has no residuals, because those of "
                    f"the other ranks were not available ({error}): a run that resumes from it "
                    "starts without them"
                )
            else:
                checkpoint[saving.KEY] = states

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Take this rank's state, for the start of training."""
        saved = checkpoint.get(saving.KEY)
        self._lacking = not saved
        if saved and self._checkpoints and trainer.state.fn == "fit":
            rank, size = trainer.global_rank, trainer.world_size
            shares = self._ranks_per_node(trainer) or 1
            self._loaded = saving.Loaded(saved, rank, size, shares, self._folder)


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)
