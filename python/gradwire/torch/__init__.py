"""The functions of `gradwire` for torch tensors; CPU tensors are not copied.

>>> import gradwire.torch
>>> codec = gradwire.topk(ratio=0.01)
>>> state = codec.init_state(grad)
>>> frame = codec.encode(grad, state)
>>> gradwire.torch.decode_add(frame, out, scale=0.5)

Tensors on other devices are also supported; `backend` tells how.

`gradwire.torch.ddp` compresses the gradients of DistributedDataParallel, `gradwire.torch.fsdp`
those of FSDP2 between nodes, and `gradwire.torch.horovod` those of Horovod;
`gradwire.torch.lightning` and `gradwire.torch.transformers` have callbacks for Trainers,
`gradwire.torch.accelerate` an `attach` for Accelerate, and `gradwire.torch.optim` lets torch's own
optimizers apply the updates of codecs.
`all_reduce` averages any tensors over the ranks of a process group. The operators
``torch.ops.gradwire.*`` decode inside compiled or exported graphs.
"""

import importlib
from typing import TYPE_CHECKING, Any

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "gradwire.torch needs PyTorch 2.4 or later: pip install 'torch>=2.4'"
    ) from error

from gradwire import _lazy
from gradwire.torch import ops as ops  # registers the operators
from gradwire.torch.backends import BackendInUse, backend
from gradwire.torch.tensors import decode, decode_add, encode, encode_into, init_state

if TYPE_CHECKING:
    from gradwire.torch import accelerate as accelerate
    from gradwire.torch import activations as activations
    from gradwire.torch import collective as collective
    from gradwire.torch import cuda as cuda
    from gradwire.torch import ddp as ddp
    from gradwire.torch import diloco as diloco
    from gradwire.torch import fsdp as fsdp
    from gradwire.torch import horovod as horovod
    from gradwire.torch import lightning as lightning
    from gradwire.torch import optim as optim
    from gradwire.torch import transformers as transformers
    from gradwire.torch import weights as weights
    from gradwire.torch.collective import Reducer as Reducer
    from gradwire.torch.collective import all_reduce as all_reduce
    from gradwire.torch.cuda import build_cuda as build_cuda

__all__ = [
    "BackendInUse",
    "backend",
    "decode",
    "decode_add",
    "encode",
    "encode_into",
    "init_state",
]


_MODULES = (
    "accelerate",
    "activations",
    "collective",
    "cost",
    "cuda",
    "ddp",
    "diloco",
    "fsdp",
    "horovod",
    "lightning",
    "optim",
    "transformers",
    "weights",
)
_FUNCTIONS = {"Reducer": "collective", "all_reduce": "collective", "build_cuda": "cuda"}
"""Public functions and classes, by their modules."""


def __getattr__(name: str) -> Any:
    # PEP 562: torch.distributed is large, and absent from some builds of torch; Horovod is rare.
    if name in (*_MODULES, *_FUNCTIONS) and not _lazy.tab_asks():
        module = importlib.import_module(f"gradwire.torch.{_FUNCTIONS.get(name, name)}")
        return getattr(module, name) if name in _FUNCTIONS else module
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_MODULES, *_FUNCTIONS]
