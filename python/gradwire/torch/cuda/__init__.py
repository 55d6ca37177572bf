"""The CUDA extension: where it comes from, and how it is built.

`load` finds the extension and registers its operators; `status` returns its library, or why there
is none. `build_cuda` compiles it from the sources in this package. `trial` compares the kernels of
a device with the core.

===========  ============================================================================
``build``    finds a CUDA compiler, and compiles into a cache that is keyed by content
``library``  finds a library, loads it, and compares its kernels with the core
===========  ============================================================================
"""

from gradwire.torch.backends.cuda.trial import Trial, TrialRow
from gradwire.torch.cuda.build import build_cuda
from gradwire.torch.cuda.library import Status, load, status, trial

__all__ = ["Status", "Trial", "TrialRow", "build_cuda", "load", "status", "trial"]
