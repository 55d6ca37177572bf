"""Solvers, which choose codes by a layer's inputs, and preparations: one file each."""

from gradwire.weights.solve.base import Preparation, Solver
from gradwire.weights.solve.comq import COMQ
from gradwire.weights.solve.gptq import GPTQ
from gradwire.weights.solve.magr import MagR

__all__ = ["COMQ", "GPTQ", "MagR", "Preparation", "Solver"]
