"""Codecs from other packages: a sparsifier written in Python, a preset, an entry point.

Memories, quantizers, frames, checkpoints, `gradwire.torch` and the command line work with such a
sparsifier just as with a built-in one. See the guide "Adding a codec".
"""

from gradwire.extension.sparsifier import Sparsifier

__all__ = ["Sparsifier"]
