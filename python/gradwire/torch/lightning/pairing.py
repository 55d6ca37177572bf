"""Finds the installed Lightning, and the Trainer's parts that a codec depends on."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torch.optim import Optimizer

from gradwire._codec import Codec
from gradwire.presets import float8
from gradwire.torch.auto import AUTO, codec_for
from gradwire.torch.ddp import PairingWarning
from gradwire.torch.engine.config import Assignment, Codecs
from gradwire.torch.engine.pairing import default_codec, name_of
from gradwire.torch.optim import family_of

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


class Pairing(NamedTuple):
    """The codec and the parts of the Trainer that are attached."""

    codec: Any
    optimizer: Optimizer | None
    scaler: Any
    in_step: bool  # gradients are exchanged in the optimizer's step


def find(
    trainer: Trainer,
    pl_module: LightningModule,
    codec: Codecs | None,
    wanted: Literal["auto"] | None,
    *,
    in_step: bool | None,
    min_ratio: float | None,
) -> Pairing:
    """Return the parts to attach, including the scaler of the precision plugin.

    Raises a ValueError if they are incompatible, with each other or with an exchange in the step.
    """
    if getattr(trainer.strategy, "_ddp_comm_hook", None) is not None:
        raise ValueError(
            "DDPStrategy(ddp_comm_hook=...) and the callback Compress are both communication "
            "hooks, and a model accepts only one: leave out ddp_comm_hook"
        )
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    clips = bool(trainer.gradient_clip_val)
    if codec is None or codec == AUTO:
        if len(trainer.optimizers) != 1:
            raise ValueError(
                f"Compress({'' if codec is None else repr(codec)}) chooses a codec from the "
                f"optimizer, but configure_optimizers() returns {len(trainer.optimizers)}: return "
                "one with several parameter groups, or give a codec"
            )
        (only,) = trainer.optimizers
        problem = _why_not_in_step(pl_module, only, scaler)
        if codec is not None:
            _check_in_step(in_step, problem)
            choices = codec_for(only, min_ratio, clips=clips and not in_step)
            return Pairing(choices, only, scaler, in_step=bool(in_step))
        codec = _suited(trainer, only, problem, in_step=in_step)
    codecs = Assignment(codec).codecs
    computes = any(each.memory.updates or each.memory.corrects for each in codecs)
    optimizer = _choose(trainer, codecs, bool(in_step)) if wanted == "auto" else None
    problem = _why_not_in_step(pl_module, optimizer, scaler)
    if in_step is None:
        in_step = clips and computes and problem is None
    _check_in_step(in_step, problem)
    if clips and computes and not in_step:
        _warn(
            f"gradient_clip_val={trainer.gradient_clip_val} clips what the codec has sent, which "
            "is updates or momentum, not gradients. To clip gradients before they are compressed: "
            "Compress(codec, exchange_in_step=True)" + (f"; but {problem}" if problem else "")
        )
    return Pairing(codec, optimizer, scaler, in_step)


def _suited(
    trainer: Trainer, optimizer: Optimizer, problem: str | None, *, in_step: bool | None
) -> Codec:
    """Return the codec for an optimizer; one that sends gradients if Lightning clips them."""
    if in_step or not trainer.gradient_clip_val or family_of(optimizer) is None:
        return default_codec(optimizer)
    if problem is None and in_step is None:
        return default_codec(optimizer)
    _warn(
        f"gradient_clip_val={trainer.gradient_clip_val} clips what was exchanged, because "
        f"{problem or 'exchange_in_step=False'}, so gradients are sent as gradwire.float8(), with "
        "a quarter of the bytes"
    )
    return float8()


def _choose(trainer: Trainer, codecs: Sequence[Codec], in_step: bool) -> Optimizer | None:
    optimizers = trainer.optimizers
    if len(optimizers) == 1:
        return optimizers[0]
    found = f"configure_optimizers() returns {len(optimizers)} optimizers"
    updating = [each.memory for each in codecs if each.memory.updates]
    if updating:
        raise ValueError(
            f"{updating[0]!r} sends steps of one torch.optim.AdamW, but {found}: use one "
            "with several parameter groups, or another codec, such as gradwire.topk(ratio=0.01)"
        )
    if any(each.memory.keeps for each in codecs) and not in_step:
        _warn(
            f"{found}, so Compress attaches none of them: it cannot check that they suit the codec "
            "or detect discarded gradients. Keep gradients that nobody applies out of the backward "
            "pass with toggle_optimizer(). If you have done so, Compress(codec, optimizer=None) "
            "leaves out this warning"
        )
    return None


def _why_not_in_step(
    pl_module: LightningModule, optimizer: Optimizer | None, scaler: object
) -> str | None:
    """Return why gradients cannot be exchanged in the optimizer's step."""
    if not pl_module.automatic_optimization:
        return "the module has automatic_optimization = False"
    if optimizer is None:
        return "there is not exactly one optimizer"
    if family_of(optimizer) is None:
        return f"the optimizer is {name_of(optimizer)}"
    if scaler is not None:
        return "the precision plugin has a loss scaler; bf16-mixed has none"
    return None


def _check_in_step(in_step: bool | None, problem: str | None) -> None:
    """Raise a ValueError if gradients are to be exchanged in the step, and cannot be."""
    if in_step and problem is not None:
        raise ValueError(
            "exchange_in_step=True needs torch.optim.AdamW, Adam or SGD, automatic optimization "
            f"and no loss scaler, but {problem}"
        )


def _warn(text: str) -> None:
    warnings.warn(text, PairingWarning, stacklevel=4)
