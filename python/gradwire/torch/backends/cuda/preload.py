"""Loads the kernels of torch that exchanges use on a device, while the device is idle.

CUDA loads a kernel at its first launch, and may then wait for the device, which may wait for other
ranks: see csrc/device/probe.h.
"""

import functools

import torch

from gradwire.torch.backends import cpu
from gradwire.torch.backends.cpu import finite
from gradwire.torch.backends.cuda.states import add_flushed
from gradwire.torch.backends.host import checksum
from gradwire.torch.backends.staging import staging

_PARTS = (300, 212)  # a whole number of wide loads each, so that kernels with these are loaded, too


@functools.cache
def preload(device: torch.device) -> None:
    """Run each operation that packs, sums and unpacks gradients once; wait for it."""
    with torch.no_grad():
        for dtype in cpu.INPUTS:
            for start in (0, 1):  # wide loads begin there, or cannot
                room = torch.zeros(start + sum(_PARTS), dtype=dtype, device=device)
                _dense(room[start:])
                _sparse(room[start:])
        _ratio(torch.zeros(2 * 64, device=device))
        slot = torch.zeros(sum(_PARTS), dtype=torch.uint8, device=device)
        torch.cat([slot, slot.new_empty(1)]).repeat(2)  # what owners of ranges send
        slot[:8].cpu()
        waits = torch.zeros(sum(_PARTS), device=device)
        add_flushed(waits.clone().zero_(), waits)  # what waits at them
        staging(device).read(slot.new_zeros((2, slot.numel()))[:, :3])


def _dense(values: torch.Tensor) -> None:
    """Run the operations for uncompressed parameters, and for gradients in ``.grad``."""
    parts, packed = torch.split(values, list(_PARTS)), torch.empty_like(values)
    torch.cat(parts, out=packed)
    finite(packed.fill_(torch.inf), _holds)  # which looks at all of them then
    total = packed.new_zeros(packed.shape, dtype=torch.promote_types(packed.dtype, torch.float32))
    total += packed
    torch.add(packed, 0.0, out=total)
    total.div_(total.new_full((), 2)).mul_(0.5).div_(2)
    for averages in (total, packed):
        torch._foreach_copy_(parts, torch.split(averages, list(_PARTS)))
    torch.mul(values, 0.5, out=torch.empty_like(values, dtype=torch.bfloat16))
    values += packed.clone().zero_() + values
    checksum(values)
    held = values.any()
    torch.stack([held, held & held]).cpu()


def _holds(flag: torch.Tensor) -> bool:
    return bool(staging(flag.device).read(flag))


def _sparse(values: torch.Tensor) -> None:
    """Run the operations on sparse values, whose sums may have another dtype."""
    for dtype in cpu.INPUTS:
        values.copy_(values.to(dtype))
    places = torch.tensor([0, 1], device="cpu").to(values.device)
    values[places] = values[2:4].mul_(0.5).clone()


def _ratio(values: torch.Tensor) -> None:
    """Run the operations that measure the ratio of squares: see engine/square_ratio.py."""
    rows = values.view(2, -1)
    sums = rows.new_full((2, rows.shape[1] + 1), torch.nan)
    for row, part in zip(sums, (rows, rows.half()), strict=True):
        part = part.float()
        torch.sum(part * rows, 0, out=row[:-1])
        torch.sum(part.square(), (0, 1), out=row[-1])
    sums.bfloat16().float()
    torch.nn.functional.pad(values[1:], (0, 1))
