"""Chooses the backend for a tensor, and says why."""

import functools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from gradwire._codec import Codec
from gradwire.errors import DeviceError, ExtensionError
from gradwire.frame import Frame
from gradwire.state import State
from gradwire.torch.backends import cpu
from gradwire.torch.backends.cpu import Bucket, FrameBytes
from gradwire.torch.errors import warn


class Backend(Protocol):
    """The functions of a backend's module, after which it is named."""

    name: str
    waits: bool  # whether reading a number of a tensor makes a thread wait for the device
    can_stay_on_device: bool  # whether frames can, if collectives take them from there
    values_stay: bool  # whether values can that are sent as they are, or computed by torch

    def encode(
        self, codec: Codec, tensor: torch.Tensor, state: State | None, max_nbytes: int | None, /
    ) -> Frame:
        """Encode one tensor, as `gradwire.torch.encode`."""

    def encode_into(
        self,
        codec: Codec,
        tensor: torch.Tensor,
        state: State | None,
        out: torch.Tensor,
        max_nbytes: int | None,
        /,
    ) -> int:
        """Encode into bytes of the caller, as `gradwire.torch.encode_into`."""

    def decode(
        self, frame: FrameBytes, out: torch.Tensor | None, max_numel: int | None, /
    ) -> torch.Tensor:
        """Decode a frame, as `gradwire.torch.decode`."""

    def decode_add(self, frame: FrameBytes, out: torch.Tensor, scale: float, /) -> None:
        """Add a decoded frame, as `gradwire.torch.decode_add`."""

    def number(self, tensor: torch.Tensor, /) -> Callable[[], float]:
        """Return a function that reads a one-number tensor's present value, later, in any thread.

        Does not wait for the device; the result may, at its first call.
        """

    def init_state(self, codec: Codec, numel: int, name: str | None, stream: int, /) -> State:
        """Return the state of a parameter whose gradients lie on the backend's device."""

    def rollback(self, states: Sequence[State], /) -> None:
        """Undo the last encode of each state, as `gradwire.State.rollback`."""

    def bucket(self, buffer: torch.Tensor, on_device: bool = False, /) -> Bucket:
        """Return the bucket of a buffer of gradients. Does not wait for the device.

        `on_device` keeps frames on the device; pass it only if the backend supports that.
        """


_IN_PLACE: Backend = cpu


@functools.cache
def _cuda() -> Backend:
    """Return the backend of the kernels, which is imported for the first tensor on a GPU."""
    from gradwire.torch.backends import cuda

    return cuda


@functools.cache
def _staged() -> Backend:
    """Return the backend for other devices, which is imported for the first tensor there."""
    from gradwire.torch.backends import host

    return host


@dataclass(frozen=True, slots=True)
class BackendInUse:
    """The backend that is used for a device, and the reason."""

    #: ``"cpu"`` where the core encodes tensors in place, ``"cuda"`` where kernels of the extension
    #: do, and ``"host"`` where tensors are copied to the host and encoded there.
    name: str
    #: Why this one.
    reason: str


def backend(device: torch.device | str | int) -> BackendInUse:
    """Return which backend is used for tensors on a device, and why.

    Parameters
    ----------
    device : torch.device, str or int
        As for `torch.device`. The device need not exist.

    Returns
    -------
    BackendInUse

    Raises
    ------
    ValueError
        Tensors of the device ``"meta"`` have no values to encode.
    ExtensionError
        The device hangs, as the trial of its kernels has shown.
    DeviceError
        The device is lost, or the process was forked from one that uses CUDA.
    RuntimeError
        torch knows no such device.
    """
    place = torch.device(device)
    if place.type == "meta":
        raise ValueError("tensors on meta have no values to encode")
    return _in_use(place, _asked_again)


def in_use(device: torch.device) -> BackendInUse:
    """Return the same for the device of a tensor, as `backend_for` finds it."""
    return _in_use(device, _kernels)


def _in_use(
    device: torch.device, kernels: Callable[[torch.device], tuple[bool, str]]
) -> BackendInUse:
    kind = device.type
    if kind == "cpu":
        return BackendInUse(_IN_PLACE.name, "tensors on the CPU are read and written in place")
    why = f"gradwire has no backend for {kind}"
    if kind == "cuda" and torch.version.hip is not None:
        why = f"{why} by ROCm"
    elif kind == "cuda":
        taken, why = kernels(device)
        if taken:
            return BackendInUse("cuda", f"CUDA kernels encode in place: {why}")
    return BackendInUse(
        _staged().name, f"{why}: tensors are copied to the host, which encodes them"
    )


def backend_for(*tensors: object) -> Backend:
    """Return the backend for the tensors among a call's arguments."""
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and not tensor.is_cpu:
            if tensor.is_cuda and torch.version.hip is None and _kernels(tensor.device)[0]:
                return _cuda()
            return _staged()
    return _IN_PLACE


def preload(tensors: Iterable[torch.Tensor]) -> None:
    """Load all kernels of torch that exchanges use on the tensors' GPUs, and wait for them.

    Call it before any operation that waits for other ranks.
    """
    for device, tensor in {tensor.device: tensor for tensor in tensors}.items():
        if tensor.is_cuda or backend_for(tensor).name == "cuda":
            from gradwire.torch.backends.cuda.preload import preload

            preload(device)


def use_host(device: torch.device, reason: str) -> None:
    """Encode tensors of a device on the host from now on; no kernels may have encoded yet."""
    _choices[device] = False, reason
    _warned.add(device)


def warn_of_host(device: torch.device, text: str) -> None:
    """Warn, once per process, that tensors on a device are encoded on the host."""
    if device not in _warned:
        _warned.add(device)
        warn(text, RuntimeWarning)


_choices: dict[torch.device, tuple[bool, str]] = {}
"""Whether kernels encode on a device, and why, once that was tried."""
_hangs: dict[torch.device, str] = {}
_warned: set[torch.device] = set()
_trying = threading.RLock()


def _asked_again(device: torch.device) -> tuple[bool, str]:
    """Check again for a missing extension; test a device only if this process already uses CUDA.

    A process that asks for the backend may fork later, and its children could then not use CUDA.
    """
    _check_fork(device)
    if not _extension()[0]:
        _extension.cache_clear()  # it may have been built since
        _choices.clear()
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        taken, why = _extension()
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
        return taken, f"{why}; CUDA_VISIBLE_DEVICES hides all GPUs here" if hidden else why
    index = torch.cuda.current_device() if device.index is None else device.index
    return _kernels(torch.device(device.type, index))


def _kernels(device: torch.device) -> tuple[bool, str]:
    """Tell whether a device runs the kernels, tested once, and why or why not."""
    _check_fork(device)
    choice = _choices.get(device)
    if choice is None:
        with _trying:
            choice = _choices.get(device) or _try_kernels(device)
    return choice


def _check_fork(device: torch.device) -> None:
    """Raise a DeviceError in a child of a process that used CUDA, where tensors are unreadable."""
    if device.type == "cuda" and torch.cuda._is_in_bad_fork():
        raise DeviceError(
            f"{device} cannot be used by this process, which was forked from one that uses CUDA: "
            'start processes with multiprocessing.set_start_method("spawn"), or fork before CUDA '
            "is used"
        )


def _try_kernels(device: torch.device) -> tuple[bool, str]:
    """Test a device, but not while a stream is captured, when the tests could not run."""
    if device in _hangs:
        raise ExtensionError(_hangs[device])
    from gradwire.torch.backends.cuda import trial
    from gradwire.torch.backends.cuda.operators import hindrance

    taken, why = _extension()
    if taken and device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return taken, why
    because, failure = hindrance(device) if taken else None, None
    if because is not None:
        taken, why = False, f"{device} does not run the kernels of the CUDA extension ({because})"
    elif taken and trial.is_on():
        try:
            failure = trial.run(device).failure
        except ExtensionError as error:
            _hangs[device] = str(error)
            raise
    if failure is not None:
        taken, why = False, f"kernels on {device} have failed their trial ({failure})"
    _choices[device] = taken, why
    if failure is not None:
        warn_of_host(
            device,
            f"{why}: tensors on it are encoded on the CPU. Please report this with the output of "
            f'`gradwire info` and of gradwire.torch.cuda.trial("{device}")',
        )
    return taken, why


@functools.cache
def _extension() -> tuple[bool, str]:
    """Load the extension at first use; tell whether it is available, and why or why not."""
    from gradwire.torch.cuda.library import load

    try:
        return True, load().reason
    except ExtensionError as error:
        return False, str(error)
