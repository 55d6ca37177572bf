"""Weights and checkpoints in fewer bits: ``make weights``."""
