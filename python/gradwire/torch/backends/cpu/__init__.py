"""Tensors on the CPU: the Rust core reads and writes them in place, through numpy."""

from gradwire.torch.backends.cpu.buckets import bucket
from gradwire.torch.backends.cpu.states import init_state, rollback
from gradwire.torch.backends.cpu.tensors import decode, decode_add, encode, encode_into, number

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

name = "cpu"
waits = False
carries = False
