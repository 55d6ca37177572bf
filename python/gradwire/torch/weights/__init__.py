"""Models with packed weights: smaller in memory and in files, and multiplied in packed form.

>>> from gradwire import quantize
>>> from gradwire.torch import weights
>>> report = weights.pack(model, {"*norm*": None, "*": quantize.Affine(4, 64)})
>>> weights.save(model, "small.safetensors")
>>> model = weights.load("small.safetensors", Model())

Calibrated codes and bit widths, from some batches:

>>> with weights.Calibration(model, sequential=True) as seen:
...     for batch in batches:
...         model(batch)
>>> report = weights.pack(model, {"*": weights.Budget(4.0)}, calibration=seen)

Lossless checkpoints in training, also as differences from an earlier one:

>>> weights.save_checkpoint("step-100.safetensors", model, optimizer)
>>> weights.save_checkpoint("step-200.safetensors", model, optimizer, base="step-100.safetensors")
>>> weights.load_checkpoint("step-200.safetensors", model, optimizer)

See ``docs/weights.md``; `gradwire.weights` packs arrays, without torch.
"""

from gradwire.torch.weights.calibration import Calibration
from gradwire.torch.weights.checkpoint import load_checkpoint, save_checkpoint
from gradwire.torch.weights.files import load, save
from gradwire.torch.weights.modules import PackedEmbedding, PackedLinear, unpack
from gradwire.torch.weights.ops import backend
from gradwire.torch.weights.pack import pack
from gradwire.torch.weights.report import PackedTensor, PackReport
from gradwire.torch.weights.straight_through import straight_through
from gradwire.weights import COMQ, GPTQ, Budget, MagR

__all__ = [
    "COMQ",
    "GPTQ",
    "Budget",
    "Calibration",
    "MagR",
    "PackReport",
    "PackedEmbedding",
    "PackedLinear",
    "PackedTensor",
    "backend",
    "load",
    "load_checkpoint",
    "pack",
    "save",
    "save_checkpoint",
    "straight_through",
    "unpack",
]
