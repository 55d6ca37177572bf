"""Which Lightning is there: ``lightning.pytorch``, or ``pytorch_lightning`` on its own."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    LightningModule = Trainer = Any  # only annotations need them

__all__ = ["Callback", "LightningModule", "Trainer"]

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


if not TYPE_CHECKING:
    Callback = _find().Callback
