"""A callback for Lightning's Trainer. See `Compress` and ``docs/lightning.md``.

>>> from gradwire.torch.lightning import Compress
>>> trainer = Trainer(strategy="ddp", devices=2, callbacks=[Compress()])
"""

import contextlib
import importlib
import os
import secrets
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire.torch import ddp
from gradwire.torch.auto import clipped
from gradwire.torch.checkpoint import files as rank_files
from gradwire.torch.checkpoint.format import Policy
from gradwire.torch.ddp.attachment import is_ddp
from gradwire.torch.engine.config import Codecs
from gradwire.torch.errors import warn

__all__ = ["Compress"]

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    _names = "lightning.pytorch", "pytorch_lightning"
    for _name in sorted(_names, key=lambda name: not sys.modules.get(name)):  # an imported one
        with contextlib.suppress(ImportError):
            Callback = importlib.import_module(_name).Callback
            break
    else:
        raise ImportError("gradwire.torch.lightning needs: pip install 'lightning>=2.4'")


class Compress(Callback):
    """Compress the gradients of a Trainer with a DDP strategy, by `gradwire.torch.ddp.attach`.

    If the codec sends updates or momentum and the Trainer clips, each rank clips its own gradients,
    and the optimizer's step exchanges them. ``hierarchy="node"`` takes the Trainer's devices per
    node. ``trainer.fit`` raises what `attach` does, and a ValueError where it cannot clip.

    Parameters
    ----------
    codec : gradwire.Codec, str, mapping of str to (gradwire.Codec, str or None), or list, optional
        As in `attach`. Without one, `gradwire.float8` where a scaler prevents clipping in the step.
    policy : {"sum-and-split", "keep", "drop"}
        As in `gradwire.torch.ddp.Handle.load_state_dict`, for a checkpoint of other ranks.
    checkpoints : bool, str or pathlib.Path
        Whether checkpoints have the residuals of all ranks, for which rank 0 needs memory. With a
        folder, each rank writes its own into a file there, which nobody removes.
    rate : bool
        Tell the schedule the learning rate of each epoch, for `gradwire.schedule.Accordion`.
    log : bool
        Log `gradwire.torch.ddp.Handle.metrics` of rank 0, as ``gradwire/wire_bytes`` and so on.
    **options
        Further options of `attach`, such as ``schedule``, or ``min_ratio`` for ``"auto"``.

    Attributes
    ----------
    handle : gradwire.torch.ddp.Handle or None
        The handle of the present fit, or, detached, of the last one.
    """

    log_dict: Any  # the Trainer sets it

    def __init__(
        self,
        codec: Codecs | None = None,
        *,
        policy: Policy = "sum-and-split",
        checkpoints: bool | str | os.PathLike[str] = True,
        rate: bool = False,
        log: bool = True,
        **options: Any,
    ) -> None:
        self.codec, self._options = codec, options
        self.handle: ddp.Handle | None = None
        self._policy, self._rate, self._log = policy, rate, log
        self._saves = checkpoints is not False
        self._folder = None if isinstance(checkpoints, bool) else Path(checkpoints).absolute()
        self._loaded: dict[str, Any] | None = None
        self._local = contextlib.ExitStack()  # while gradients stay on their ranks until the step

    def report(self, **options: bool) -> ddp.Report:
        """Return `gradwire.torch.ddp.Handle.report` of the present fit, or the last one."""
        if self.handle is None:
            raise ValueError("nothing was compressed here: ddp_spawn trains in other processes")
        return self.handle.report(**options)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach. The model is wrapped by now, and there are optimizers."""
        self.handle, self._interrupted, model = None, False, trainer.model
        if not is_ddp(model):
            warn(
                f"{type(trainer.strategy).__name__} has no DistributedDataParallel model, so "
                'nothing is compressed: use Trainer(strategy="ddp", devices=...)',
                RuntimeWarning,
            )
            return
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        codec, options, in_step = self.codec, dict(self._options), False
        if options.get("hierarchy") == "node":
            options["hierarchy"] = trainer.num_devices
        if trainer.gradient_clip_val:
            codec, in_step = clipped(codec, trainer.optimizers, scaler, options)
        self.handle = ddp.attach(model, codec, trainer.optimizers, grad_scaler=scaler, **options)
        if in_step:
            self._local.enter_context(model.no_sync())
        self._run = trainer.strategy.broadcast(secrets.token_hex(4))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Restore. The Trainer has restored everything else by now."""
        saved, self._loaded = self._loaded, None
        if self.handle is None or saved is None or not self._saves:
            return
        there = Path(saved.get("folder", ""))
        there = there if self._folder is None else self._folder / there.name
        if not saved:
            text = f"{trainer.ckpt_path} has no residuals of all ranks: they start from zero"
            warn(text, RuntimeWarning)
        elif "folder" not in saved:
            self.handle.load_state_dict(saved, self._policy)
        elif not rank_files.load(self.handle, there, self._policy):
            raise ValueError(f"there are no residuals in {there}: see checkpoints=")

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Advance the schedule."""
        if self.handle is not None:
            rate = float(trainer.optimizers[0].param_groups[0]["lr"]) if self._rate else None
            self.handle.epoch(trainer.current_epoch, rate)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log figures, in the steps in which the Trainer writes any."""
        if self.handle is None or not self._log:
            return
        if trainer._logger_connector.should_update_logs:
            figures = {f"gradwire/{name}": value for name, value in self.handle.metrics().items()}
            self.log_dict(figures, on_step=True, on_epoch=False)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Disconnect from the other ranks, which may be waiting for this one."""
        self._interrupted = True
        self.teardown(trainer, pl_module, "fit")

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Detach. Residuals stay with the handle, for checkpoints after the fit."""
        self._loaded = None
        self._local.close()
        if self.handle is not None:
            self.handle.detach()

    def state_dict(self) -> dict[str, Any]:
        """Return a non-empty dict, so that Lightning warns if the callback is missing on resume."""
        return {} if self.handle is None else {"codec": repr(self.codec)}

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Put the states of all ranks into the checkpoint, which rank 0 writes. A collective."""
        if self.handle is None or not self._saves:
            return
        if self._folder is not None:
            there = self._folder / f"step={trainer.global_step}-{self._run}"
            there.mkdir(parents=True, exist_ok=True)
            rank_files.save(self.handle, there)
            checkpoint["gradwire"] = {"folder": str(there)}
            return
        try:  # after an exception, the other ranks may not be there
            timeout = timedelta(seconds=5) if self._interrupted else None
            checkpoint["gradwire"] = rank_files.gathered(self.handle, timeout=timeout)
        except (RuntimeError, ValueError) as error:
            if not self._interrupted:
                raise
            text = f"the checkpoint has no residuals: those of other ranks are missing ({error})"
            warn(text, RuntimeWarning)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keep the states of all ranks for the start of training."""
        self._loaded = checkpoint.get("gradwire", {})
