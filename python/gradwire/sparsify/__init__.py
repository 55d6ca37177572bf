"""Sparsifiers: which entries are sent.

Only `All` and `RandomK` send exact zeros. Ties go to the lower index. A step on a tensor of n
entries costs one read of n values (with `gradwire.memory.Residual` also one read and one write of
the residual) plus work on the selected entries. The first step, and a step after a sudden change of
scale, may read the tensor twice. Options out of range raise a ValueError, those of the wrong type a
TypeError.
"""

from gradwire._part import own_parts
from gradwire.sparsify.base import Sparsifier as Sparsifier

# One line each, in the order in which they are listed: importing a class registers it.
# isort: off
from gradwire.sparsify.base import All as All
from gradwire.sparsify.topk import TopK as TopK
from gradwire.sparsify.topk import SampledTopK as SampledTopK
from gradwire.sparsify.topk import ChunkTopK as ChunkTopK
from gradwire.sparsify.topk import RandomK as RandomK
from gradwire.sparsify.thresholds import Threshold as Threshold
from gradwire.sparsify.thresholds import SID as SID
from gradwire.sparsify.thresholds import BinMax as BinMax
from gradwire.sparsify.thresholds import TwoSided as TwoSided
from gradwire.sparsify.thresholds import Gaussian as Gaussian
from gradwire.sparsify.thresholds import Trimmed as Trimmed
# isort: on

SPARSIFIERS: tuple[type[Sparsifier], ...] = own_parts(Sparsifier)  #: those of this package

__all__ = ["Sparsifier", *(part.__name__ for part in SPARSIFIERS)]
