"""Packed weights: tensors in a few bits an entry, and files of them, without torch.

A packed tensor is one frame of `gradwire.quantize.Affine` codes and what a frame does not say:
shape, dtype, and codes of further bits. A file is a safetensors file, which every tool opens; its
format is in ``docs/packed-files.md``. `gradwire.torch.weights` computes with both.
"""

from gradwire.weights.file import File, open, save
from gradwire.weights.packed import Packed, pack

__all__ = ["File", "Packed", "open", "pack", "save"]
