"""Tensors on a GPU: CUDA kernels encode, keep states and decode where the tensors are.

The host gets a table of a few words per parameter, and the frames if its collectives read them from
the host. Codecs without kernels, such as parts written in Python, are encoded on the host, by the
backend of that name; so are invalid inputs, for which the host raises the error.
"""

import functools

import numpy as np
import torch

from gradwire import _native, _validate
from gradwire._codec import Codec
from gradwire.frame import Frame
from gradwire.state import State, on_host
from gradwire.torch.backends import host
from gradwire.torch.backends.cpu import (
    BYTES,
    INPUTS,
    OUTPUTS,
    FrameBytes,
    bump_version,
    check,
    check_out,
)
from gradwire.torch.backends.cuda import encoding
from gradwire.torch.backends.cuda.buckets import bucket
from gradwire.torch.backends.cuda.operators import are_for, takes, thread_memory
from gradwire.torch.backends.cuda.states import DeviceState, init_state, rollback
from gradwire.torch.backends.host import number, overlap
from gradwire.torch.backends.staging import naming_loss

__all__ = [
    "bucket",
    "can_stay_on_device",
    "decode",
    "decode_add",
    "encode",
    "encode_into",
    "init_state",
    "name",
    "number",
    "rollback",
    "values_stay",
    "waits",
]

name = "cuda"
waits = True
can_stay_on_device = values_stay = True


def encode(
    codec: Codec, tensor: torch.Tensor, state: State | DeviceState | None, max_nbytes: int | None
) -> Frame:
    """Encode on the device, and copy the frame to the host."""
    check(tensor, "tensor", INPUTS)
    made = _encoded(codec, tensor, state, max_nbytes)
    if made is None:
        return host.encode(codec, tensor, on_host(state), max_nbytes)
    with naming_loss(tensor.device):
        return _native.Frame(made.cpu().numpy())


def encode_into(
    codec: Codec,
    tensor: torch.Tensor,
    state: State | DeviceState | None,
    out: torch.Tensor,
    max_nbytes: int | None,
) -> int:
    """Encode on the device, and copy the frame to its destination."""
    check(tensor, "tensor", INPUTS)
    check_out(out, BYTES)
    limit = out.numel() if max_nbytes is None else min(out.numel(), max_nbytes)
    made = None if overlap(tensor, out) else _encoded(codec, tensor, state, limit)
    if made is None:
        return host.encode_into(codec, tensor, on_host(state), out, max_nbytes)
    with torch.inference_mode(out.is_inference()), torch.no_grad():
        out.view(-1)[: made.numel()].copy_(made)
    return made.numel()


def _encoded(
    codec: Codec, tensor: torch.Tensor, state: State | DeviceState | None, max_nbytes: int | None
) -> torch.Tensor | None:
    """Return the bytes of a frame on the device, or None if the host must encode."""
    if not are_for(tensor):  # only the bytes are to be on a GPU
        return None
    if state is None and takes(codec) and _is_stateless(codec):
        state = DeviceState(codec, tensor.numel())
        state.plans = thread_memory.stateless
    if not isinstance(state, DeviceState) or not takes(codec) or state.numel != tensor.numel():
        return None
    codec_of_state = state.codec
    if codec_of_state is not codec and not codec_of_state._codec.same_kind(codec._codec):
        return None
    if codec._open and tensor.ndim > 1:
        return None
    limit = codec.max_encoded_len(tensor.numel())
    if max_nbytes is not None:
        limit = min(limit, _validate.integer("max_nbytes", max_nbytes, low=0))
    flat = tensor.detach().view(-1)
    with naming_loss(tensor.device):
        frame = torch.empty(limit, dtype=torch.uint8, device=tensor.device)
    rows = encoding.encode([codec], [state], [0, flat.numel()], [limit], flat, 1.0, frame)
    return frame[: int(rows[0, 0])] if len(rows) else None


@functools.lru_cache(1024)
def _is_stateless(codec: Codec) -> bool:
    try:
        codec.encode(np.zeros(0, np.float32), None)
    except ValueError:
        return False
    return True


def decode(frame: FrameBytes, out: torch.Tensor | None, max_numel: int | None) -> torch.Tensor:
    """Decode on the device."""
    if out is None:
        if not isinstance(frame, torch.Tensor):
            return host.decode(frame, None, max_numel)
        check(frame, "frame", BYTES)
        # The host looks at the frame before so much memory is taken.
        numel = _native.Frame(frame.cpu().numpy(), max_numel).numel
        out = torch.empty(numel, dtype=torch.float32, device=frame.device)
    check_out(out, OUTPUTS)
    fits = max_numel is None or max_numel >= out.numel()
    if fits and _decoded(frame, out, encoding.PLACE, 1.0):
        return out
    return host.decode(frame, out, max_numel)


def decode_add(frame: FrameBytes, out: torch.Tensor, scale: float) -> None:
    """Decode and add on the device."""
    check_out(out, OUTPUTS)
    if not np.isfinite(scale) or not _decoded(frame, out, encoding.ADD, float(np.float32(scale))):
        host.decode_add(frame, out, scale)


def _decoded(frame: FrameBytes, out: torch.Tensor, into: int, scale: float) -> bool:
    if not are_for(out):  # only the frame is on a GPU
        return False
    if isinstance(frame, torch.Tensor):
        check(frame, "frame", BYTES)
        data = frame
    else:
        data = torch.from_numpy(np.frombuffer(memoryview(frame), np.uint8).copy())
    with naming_loss(out.device):
        data = data.detach().view(-1).to(out.device)
    flat = out.detach().view(-1)
    with torch.no_grad():
        done = encoding.decode(flat, data, [0, flat.numel()], [0], [data.numel()], 1, into, scale)
    if done:
        bump_version(out)
    return done
