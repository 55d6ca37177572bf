"""GPTQ: columns are rounded one by one, and later columns compensate each error."""

import dataclasses

from gradwire import _native, _validate
from gradwire.quantize import Affine
from gradwire.weights.solve.base import Floats, Grids, Matrix


@dataclasses.dataclass(frozen=True)
class GPTQ:
    """Rounds the weights of one input after another; the following ones compensate the error.

    Inputs with large means of squares come first. Grids are those of ``affine.fit``, but
    ``"range"`` replaces ``"squares"``: a grid with a small error of weights need not have a small
    error of outputs.

    Parameters
    ----------
    damp : float
        Term added to the diagonal of the Gram matrix, as a share of its mean.

    References
    ----------
    Frantar, Ashkboos, Hoefler, Alistarh, "GPTQ: Accurate Post-Training Quantization for Generative
    Pre-trained Transformers", ICLR 2023, algorithm 1. Computed without an inverse, from the
    factorisation of Chee, Cai, Kuleshov, De Sa, "QuIP", NeurIPS 2023, section 3 (equal codes).
    """

    damp: float = 0.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "damp", _validate.positive("damp", self.damp))

    def solve(self, w: Floats, gram: Matrix, affine: Affine) -> Grids:
        """Return codes, steps and bases: see `Solver.solve`.

        Raises
        ------
        ValueError
            ``gram`` is not a Gram matrix of that many columns, or singular with ``damp`` 0; the
            block does not divide a row.
        """
        return _native.solve_gptq(w, gram, affine.get_config(), self.damp)
