"""Which Lightning is there, and what belongs to a codec among the parts of its Trainer."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from torch.optim import Optimizer

from gradwire._codec import Codec
from gradwire.torch import optim
from gradwire.torch.auto import AUTO, codec_for
from gradwire.torch.ddp import PairingWarning
from gradwire.torch.engine.config import Assignment, Codecs

_NAMES = ("lightning.pytorch", "pytorch_lightning")


def _find() -> Any:
    # Each of the two takes seconds to import: take the one that the program has imported.
    names = [name for name in _NAMES if sys.modules.get(name)] or _NAMES
    for name in names:
        try:
            return importlib.import_module(name)
        except ImportError as error:
            missing = error
    raise ImportError(
        "gradwire.torch.lightning needs Lightning 2.4 or later: pip install 'lightning>=2.4'"
    ) from missing


if TYPE_CHECKING:
    from lightning.pytorch import Callback as Callback
    from lightning.pytorch import LightningModule as LightningModule
    from lightning.pytorch import Trainer as Trainer
else:
    Callback = _find().Callback
    LightningModule = Trainer = Any  # only annotations need them


def find(
    trainer: Trainer,
    pl_module: LightningModule,
    codec: Codecs | Literal["auto"],
    wanted: Literal["auto"] | None,
    *,
    in_step: bool,
    min_ratio: float | None,
) -> tuple[Optimizer | None, Any]:
    """Return the optimizer to attach and the scaler of the precision plugin.

    A ValueError if they do not go with the codec, or not with an exchange in the optimizer's step.
    """
    if getattr(trainer.strategy, "_ddp_comm_hook", None) is not None:
        raise ValueError(
            "DDPStrategy(ddp_comm_hook=...) and the callback Compress are two communication hooks, "
            "of which a model takes only one: leave out ddp_comm_hook"
        )
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    automatic = codec == AUTO
    if automatic and len(trainer.optimizers) == 1:
        codec = codec_for(trainer.optimizers[0], min_ratio).codec
    elif automatic:
        raise ValueError(
            '"auto" chooses a codec by the optimizer, but configure_optimizers() returns '
            f"{len(trainer.optimizers)}: return one with several parameter groups, or give a codec"
        )
    codecs = Assignment(codec).codecs
    optimizer = _choose(trainer, codecs, in_step) if wanted == "auto" else None
    if in_step:
        _check_in_step(pl_module, optimizer, scaler)
    elif trainer.gradient_clip_val and any(
        each.memory.updates or each.memory.corrects for each in codecs
    ):
        if automatic:
            raise ValueError(
                f"gradient_clip_val={trainer.gradient_clip_val} would clip gradients while they "
                'are dense, and updates once "auto" has come to the codec for '
                "gradwire.torch.optim.AdamW: leave it out, take torch.optim.AdamW, or give a codec "
                "and exchange_in_step=True"
            )
        _warn(
            f"gradient_clip_val={trainer.gradient_clip_val} clips what the codec has sent, which "
            "is updates or momentum, not gradients. To clip gradients before they are compressed: "
            "Compress(codec, exchange_in_step=True)"
        )
    return optimizer, scaler


def _choose(trainer: Trainer, codecs: Sequence[Codec], in_step: bool) -> Optimizer | None:
    optimizers = trainer.optimizers
    if len(optimizers) == 1:
        return optimizers[0]
    found = f"configure_optimizers() returns {len(optimizers)} optimizers"
    updating = [each.memory for each in codecs if each.memory.updates]
    if updating:
        raise ValueError(
            f"{updating[0]!r} sends steps of one gradwire.torch.optim.AdamW, but {found}: use one "
            "with several parameter groups, or another codec, such as gradwire.topk(ratio=0.01)"
        )
    if any(each.memory.keeps for each in codecs) and not in_step:
        _warn(
            f"{found}, so Compress attaches none of them: it cannot check that they suit the "
            "codec, and cannot notice gradients that are thrown away. Keep gradients that nobody "
            "applies out of the backward pass, by toggle_optimizer(). If you have done so, "
            "Compress(codec, optimizer=None) leaves out this warning"
        )
    return None


def _check_in_step(pl_module: LightningModule, optimizer: Optimizer | None, scaler: object) -> None:
    problem = None
    if not pl_module.automatic_optimization:
        problem = "the module has automatic_optimization = False"
    elif optimizer is None:
        problem = "there is not exactly one optimizer"
    elif not isinstance(optimizer, optim.AdamW | optim.SGD):
        kind = type(optimizer)
        problem = f"the optimizer is {kind.__module__}.{kind.__qualname__}"
    elif scaler is not None:
        problem = "the precision plugin has a loss scaler; that of bf16-mixed has none"
    if problem is not None:
        raise ValueError(
            "exchange_in_step=True needs gradwire.torch.optim.AdamW or SGD, automatic optimization "
            f"and no loss scaler, but {problem}"
        )


def _warn(text: str) -> None:
    warnings.warn(text, PairingWarning, stacklevel=4)
