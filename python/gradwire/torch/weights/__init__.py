"""Models whose weights are packed: smaller in memory and in files, multiplied where they lie.

>>> from gradwire import quantize
>>> from gradwire.torch import weights
>>> report = weights.pack(model, {"*norm*": None, "*": quantize.Affine(4, 64)})
>>> weights.save(model, "small.safetensors")
>>> model = weights.load("small.safetensors", Model())

See ``docs/weights.md``; `gradwire.weights` packs arrays, without torch.
"""

from gradwire.torch.weights.files import load, save
from gradwire.torch.weights.modules import PackedEmbedding, PackedLinear
from gradwire.torch.weights.ops import backend
from gradwire.torch.weights.pack import pack
from gradwire.torch.weights.report import PackedTensor, PackReport

__all__ = [
    "PackReport",
    "PackedEmbedding",
    "PackedLinear",
    "PackedTensor",
    "backend",
    "load",
    "pack",
    "save",
]
