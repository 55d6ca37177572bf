"""Tensors on a GPU: CUDA kernels encode, keep states and decode where the tensors are.

To the host goes a table of a few words per parameter, and the frames themselves for an exchange
over the host. What kernels do not take goes by the host, as in the backend of that name.
"""

from gradwire.torch.backends.cuda.buckets import bucket
from gradwire.torch.backends.cuda.states import init_state
from gradwire.torch.backends.cuda.tensors import decode, decode_add, encode, encode_into, number

__all__ = [
    "bucket",
    "decode",
    "decode_add",
    "encode",
    "encode_into",
    "init_state",
    "name",
    "number",
    "waits",
]

name = "cuda"
waits = True
