"""Codecs from other packages: parts written in Python, a preset, an entry point.

Memories, frames, checkpoints, `gradwire.torch` and the command line work with such parts just as
with built-in ones. See the guide "Adding a codec".
"""

from gradwire.extension.index_coding import IndexCoding
from gradwire.extension.quantizer import Quantizer
from gradwire.extension.sparsifier import Sparsifier

__all__ = ["IndexCoding", "Quantizer", "Sparsifier"]
