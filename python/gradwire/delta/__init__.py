"""Patches: what makes the new weights of the old ones, exactly, in few bytes; without torch.

>>> patch = delta.encode(base, new)  # bytes; a step of training changes few weights of bfloat16
>>> delta.apply(base, patch)         # base is new, to the bit

`Publisher` and `Follower` keep models on other machines up to date by a folder that both see. A
model is a mapping of names to arrays, `gradwire.weights.RawTensor` or torch tensors, or a torch
module. The format is in ``docs/delta-format.md``.
"""

from gradwire.delta.folder import Folder, Version
from gradwire.delta.follower import Follower
from gradwire.delta.patch import apply, digest, digests, encode
from gradwire.delta.publisher import Publisher

__all__ = [
    "Folder",
    "Follower",
    "Publisher",
    "Version",
    "apply",
    "digest",
    "digests",
    "encode",
]
