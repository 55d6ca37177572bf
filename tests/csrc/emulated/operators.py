"""The operators of the extension over the emulated kernels: the CUDA backend without a GPU.

They are those of ``csrc/ops``, in a library of their own and for tensors on the CPU.
"""

import os
from functools import cache

import torch

from gradwire.torch.backends.cuda import operators
from tests.csrc.emulated.build import build
from tests.csrc.emulated.kernels import Kernels

SANITIZED = bool(os.environ.get("GRADWIRE_TEST_SANITIZED"))
RACES = os.environ.get("GRADWIRE_TEST_RACES", "")
"""``some`` or ``all``: which cases of a test run, with the race detector."""


@cache
def emulate() -> Kernels:
    """Have the CUDA backend use the emulated kernels in this process from now on."""
    library = build(sanitized=SANITIZED, races=bool(RACES))
    torch.ops.load_library(library)
    operators._library = "gradwire_watched" if RACES else "gradwire_emulated"
    operators._device = "cpu"
    return Kernels(library)
