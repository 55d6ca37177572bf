"""Chooses the backend for a model's devices, the same on all ranks, and warns of fallbacks."""

from collections.abc import Iterable, Mapping

import torch

from gradwire.errors import ExtensionError
from gradwire.torch import backends
from gradwire.torch.transport import Channel

_with_kernels: set[torch.device] = set()
"""Devices on which ranks have agreed on kernels, which stay in use: states are there."""


class Devices:
    """The devices of these tensors; tests and loads their kernels before any collective.

    A rank whose device hangs still reaches `agree`, so no other rank waits for it in vain.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._found: dict[torch.device, backends.BackendInUse] = {}
        self._error: Exception | None = None
        try:
            every = {each.device: each for each in tensors}
            for device in every:
                self._found[device] = backends.in_use(device)
            backends.preload(every.values())
        except Exception as error:
            self._error = error

    def agree(self, channel: Channel) -> None:
        """Encode on the host on all ranks if any rank must. A collective.

        So all ranks transfer frames in the same way. Raises an ExtensionError on all ranks if a
        device of one hangs.
        """
        found = {each.type: way.reason for each, way in self._found.items() if way.name == "host"}
        every = channel.all_gather_object((found, self._error and str(self._error)))
        if self._error is not None:
            raise self._error
        for rank, (_, error) in enumerate(every):
            if error is not None:
                raise ExtensionError(f"rank {rank} cannot attach: {error}")
        for device, way in self._found.items():
            why = [
                f"as on rank {rank}, where {theirs[device.type]}"
                for rank, (theirs, _) in enumerate(every)
                if device.type in theirs
            ]
            if way.name == "cuda" and not why:
                _with_kernels.add(device)
            elif way.name == "cuda" and device not in _with_kernels:
                backends.use_host(device, why[0])

    def warn_of_copies(self, device_backends: Mapping[str, str]) -> None:
        """Warn once per device that its gradients are copied to the host.

        Device types that have a backend of their own are excluded.
        """
        for device, way in self._found.items():
            if device.type in ("cpu", *device_backends):
                continue
            text = (
                f"gradients on {device} are encoded on the CPU in every step: {way.reason}. The "
                "kernels need an NVIDIA GPU, torch 2.11, the extension that "
                "gradwire.torch.build_cuda() compiles, and a driver for its CUDA version. Without "
                "these, this is expected: averages are the same, but steps take longer"
            )
            if way.name == "cuda":
                text = (
                    f"frames of gradients on {device} are copied to the CPU and sent over Gloo: "
                    f"the model's process group has no backend for {device.type} that sends from "
                    "device memory, such as NCCL"
                )
            backends.warn_of_host(device, text)
