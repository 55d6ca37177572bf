"""The operators of the extension over the emulated kernels: the CUDA backend without a GPU.

They are those of ``csrc/ops``, in a library of their own and for tensors on the CPU.
"""

import os
from functools import cache

import torch

from gradwire.torch.backends.cuda import operators
from tests.csrc.emulated.build import build

RACES = bool(os.environ.get("GRADWIRE_TEST_RACES"))


@cache
def emulate() -> None:
    """Have the CUDA backend use the emulated kernels in this process from now on.

    With ``GRADWIRE_TEST_RACES``, those that the race detector watches.
    """
    torch.ops.load_library(build(races=RACES, operators=True))
    operators._library, operators._device = "gradwire_emulated", "cpu"
