"""MagR: reduces the largest weights for nearly the same outputs."""

import dataclasses

from gradwire import _native, _validate
from gradwire.quantize import Affine
from gradwire.weights.solve.base import Floats, Matrix


@dataclasses.dataclass(frozen=True)
class MagR:
    """Shrinks the largest magnitudes of each block, and preserves the layer's outputs.

    A smaller range gives a finer grid. It helps if blocks are long and a few weights are far larger
    than the others: see ``docs/weights-inside.md``.

    Parameters
    ----------
    alpha : float
        The weight of the largest magnitudes against the squared error of the outputs, where the
        Gram matrix is divided by its largest eigenvalue.
    steps : int
        Of accelerated proximal gradient descent (FISTA).

    References
    ----------
    Zhang, Wang, Deng, Li, Yang, Yin, "MagR: Weight Magnitude Reduction for Enhancing Post-Training
    Quantization", NeurIPS 2024, section 3. The acceleration is ours (FISTA: Beck and Teboulle,
    SIAM Journal on Imaging Sciences 2009), and so are maxima of blocks in place of rows.
    """

    alpha: float = 1e-4
    steps: int = 150

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", _validate.positive("alpha", self.alpha))
        object.__setattr__(self, "steps", _validate.integer("steps", self.steps, low=1))

    def prepare(self, w: Floats, gram: Matrix, affine: Affine) -> Floats:
        """Return weights in place of ``w``: see `Preparation.prepare`.

        Raises
        ------
        ValueError
            ``gram`` is not a Gram matrix of that many columns.
        """
        block = w.shape[1] if affine.block is None else affine.block
        return _native.solve_magr(w, gram, block, self.alpha, self.steps)
