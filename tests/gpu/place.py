"""Where the tests of this folder run: on a GPU, or with emulated kernels in its place.

    python3 -m tests.gpu.place

prints what there is, as JSON. With ``GRADWIRE_VISIT_EMULATED=1``, emulated kernels take tensors on
the CPU, so that a visit is tried before the one to a GPU.
"""

import json
import os
import platform
from typing import Any

import torch

import gradwire.torch
from benches.gpu.measure import facts
from gradwire.torch.backends import cuda, dispatch
from gradwire.torch.backends.cuda import trial
from tests.csrc.emulated.operators import emulate

EMULATED = os.environ.get("GRADWIRE_VISIT_EMULATED") == "1"
DEVICE = "cpu" if EMULATED else "cuda"
GPU = EMULATED or torch.cuda.is_available()


def kernels() -> bool:
    """Tell whether kernels encode, on a GPU or in its place, from now on."""
    if not EMULATED:
        return gradwire.torch.backend("cuda").name == "cuda"
    emulate()
    dispatch._IN_PLACE = cuda
    trial.PATIENCE = 600.0  # emulated kernels take long
    return True


def lost() -> str | None:
    """Return the error of a device that this process can use no more, or None."""
    if EMULATED or not torch.cuda.is_initialized():
        return None
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return None


def found() -> dict[str, Any]:
    """Return what there is here: a GPU, kernels for it, versions."""
    said: dict[str, Any] = {"python": platform.python_version(), "system": platform.release()}
    if not GPU:
        return {**said, "gpu": False, "kernels": False, "reason": "no GPU here", "facts": {}}
    if not EMULATED:
        torch.cuda.init()
    used = kernels()
    reason = "emulated" if EMULATED else gradwire.torch.backend("cuda").reason
    return {**said, "gpu": True, "kernels": used, "reason": reason, "facts": facts(DEVICE)}


if __name__ == "__main__":
    print(json.dumps(found()))
