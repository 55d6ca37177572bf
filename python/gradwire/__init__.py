"""Compression codecs for tensors that are sent over a network.

>>> codec = gradwire.topk(ratio=0.01)
>>> state = codec.init_state(x.size)
>>> frame = codec.encode(x, state)
>>> y = gradwire.decode(frame)

These functions take numpy arrays. `gradwire.torch` has the same functions for torch tensors; it is
imported on first use.
"""

from typing import TYPE_CHECKING, Any

from gradwire import (
    _environment,
    errors,
    exchange,
    extension,
    memory,
    presets,
    quantize,
    schedule,
    sparsify,
)
from gradwire._native import VERSION as __version__
from gradwire._native import get_num_threads, set_num_threads, simd_level
from gradwire.codec import Codec
from gradwire.errors import (
    CorruptFrameError,
    FrameTooLargeError,
    GradwireError,
    InputChangedError,
    NonFiniteError,
    PluginError,
    StateInUseError,
    TruncatedFrameError,
    UnsupportedFrameError,
)
from gradwire.frame import Frame, decode, decode_add
from gradwire.presets import (
    adacomp,
    adaptive,
    dense,
    dgc,
    float8,
    gaussiank,
    natural,
    onebit,
    qsgd,
    randomk,
    redsync,
    scalecom,
    sidco,
    signsgd,
    sparseloco,
    strom,
    terngrad,
    threshold,
    topk,
)
from gradwire.state import State

if TYPE_CHECKING:
    from gradwire import torch as torch

__all__ = [
    "Codec",
    "CorruptFrameError",
    "Frame",
    "FrameTooLargeError",
    "GradwireError",
    "InputChangedError",
    "NonFiniteError",
    "PluginError",
    "State",
    "StateInUseError",
    "TruncatedFrameError",
    "UnsupportedFrameError",
    "__version__",
    "adacomp",
    "adaptive",
    "decode",
    "decode_add",
    "dense",
    "dgc",
    "errors",
    "exchange",
    "extension",
    "float8",
    "gaussiank",
    "get_num_threads",
    "memory",
    "natural",
    "onebit",
    "presets",
    "qsgd",
    "quantize",
    "randomk",
    "redsync",
    "scalecom",
    "schedule",
    "set_num_threads",
    "sidco",
    "signsgd",
    "simd_level",
    "sparseloco",
    "sparsify",
    "strom",
    "terngrad",
    "threshold",
    "topk",
]

_environment.warn()


def __getattr__(name: str) -> Any:
    # PEP 562: `gradwire.torch` without `import gradwire.torch`, and without torch until it is used.
    if name == "torch":
        import importlib

        return importlib.import_module("gradwire.torch")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
