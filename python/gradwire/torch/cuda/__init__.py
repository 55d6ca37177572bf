"""The CUDA extension: where it comes from, and how it is built.

`load` finds the extension and registers its operators; `status` says which library that is, or why
there is none. `build_cuda` compiles it from the sources in this package.

===========  ============================================================================
``build``    finds a CUDA compiler, and compiles into a cache that is keyed by content
``library``  finds a library, and loads it
===========  ============================================================================
"""

from gradwire.torch.cuda.build import build_cuda
from gradwire.torch.cuda.library import Status, load, status

__all__ = ["Status", "build_cuda", "load", "status"]
