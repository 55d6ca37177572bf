"""Compression codecs for tensors that are sent over a network.

>>> codec = gradwire.topk(ratio=0.01)
>>> state = codec.init_state(x)
>>> frame = codec.encode(x, state)
>>> y = gradwire.decode(frame)

A codec encodes numpy arrays and torch tensors. `gradwire.torch`, which is imported on first use,
decodes to tensors.
"""

import warnings
from typing import TYPE_CHECKING, Any

from gradwire import (
    _lazy,
    _native,
    errors,
    exchange,
    extension,
    memory,
    presets,
    quantize,
    schedule,
    sparsify,
)
from gradwire._codec import Codec
from gradwire._native import VERSION as __version__
from gradwire._native import get_num_threads, set_num_threads, simd_level
from gradwire.errors import *  # noqa: F403
from gradwire.frame import Frame, decode, decode_add
from gradwire.presets import codec
from gradwire.presets.hybrid import *  # noqa: F403
from gradwire.presets.quantized import *  # noqa: F403
from gradwire.presets.sparse import *  # noqa: F403
from gradwire.state import State

if TYPE_CHECKING:
    from gradwire import cost as cost
    from gradwire import delta as delta
    from gradwire import numerics as numerics
    from gradwire import torch as torch
    from gradwire import weights as weights

__all__ = [
    "Codec",
    "Frame",
    "State",
    "__version__",
    "codec",
    "decode",
    "decode_add",
    "errors",
    "exchange",
    "extension",
    "get_num_threads",
    "memory",
    "presets",
    "quantize",
    "schedule",
    "set_num_threads",
    "simd_level",
    "sparsify",
    *errors.__all__,
    *(preset.name for preset in presets.OWN),
]

_MODULES = ("cost", "delta", "numerics", "torch", "weights")

for _complaint in _native.environment_complaints():  # variables whose values are ignored
    warnings.warn(_complaint, RuntimeWarning, stacklevel=2)


def __getattr__(name: str) -> Any:
    # PEP 562: `gradwire.torch` without `import gradwire.torch`, and without torch until it is used.
    if name in _MODULES and not _lazy.tab_asks():
        import importlib

        return importlib.import_module(f"gradwire.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_MODULES]
