"""Packed weights: tensors in a few bits per entry, and files of them, without torch.

A packed tensor is one frame of `gradwire.quantize.Affine` codes, with the tensor's shape, dtype,
and codes of further bits. A file is a safetensors file, which every tool opens; its format is in
``docs/packed-files.md``. It may also hold losslessly coded floats, or their differences from
another file: ``docs/checkpoint-files.md``. `gradwire.torch.weights` computes with packed tensors,
and calibrates: with the `Gram` matrix of a layer's inputs, codes are chosen so that its outputs
change least.
"""

from gradwire.weights.budget import Budget
from gradwire.weights.file import File
from gradwire.weights.gram import Gram, load_grams, save_grams
from gradwire.weights.header import RawTensor
from gradwire.weights.pack import pack
from gradwire.weights.packed import Packed
from gradwire.weights.saving import save
from gradwire.weights.shards import Shards, open
from gradwire.weights.solve import COMQ, GPTQ, MagR, Preparation, Solver

__all__ = [
    "COMQ",
    "GPTQ",
    "Budget",
    "File",
    "Gram",
    "MagR",
    "Packed",
    "Preparation",
    "RawTensor",
    "Shards",
    "Solver",
    "load_grams",
    "open",
    "pack",
    "save",
    "save_grams",
]
