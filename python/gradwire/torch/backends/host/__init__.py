"""Tensors on a device without a backend of its own: the host encodes copies of them.

It needs nothing of a device but copies, so it takes any: CUDA without the extension, ROCm, XPU,
MPS. What crosses to the host is every gradient, and what crosses back are averages: correct
everywhere, and slower than a backend that works on the device.
"""

from gradwire.torch.backends.host.buckets import bucket
from gradwire.torch.backends.host.states import init_state, rollback
from gradwire.torch.backends.host.tensors import decode, decode_add, encode, encode_into, number

__all__ = [
    "bucket",
    "carries",
    "decode",
    "decode_add",
    "encode",
    "encode_into",
    "init_state",
    "name",
    "number",
    "rollback",
    "waits",
]

name = "host"
waits = True
carries = False
