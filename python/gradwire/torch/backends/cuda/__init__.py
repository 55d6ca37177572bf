"""Tensors on a GPU: CUDA kernels encode, keep states and decode where the tensors are.

To the host goes a table of a few words per parameter, and where collectives take frames from the
host, the frames themselves. What kernels do not take goes by the host, as in the backend of that
name.
"""

from gradwire.torch.backends.cuda.buckets import bucket
from gradwire.torch.backends.cuda.states import init_state, rollback
from gradwire.torch.backends.cuda.tensors import decode, decode_add, encode, encode_into, number

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

name = "cuda"
waits = True
carries = True
