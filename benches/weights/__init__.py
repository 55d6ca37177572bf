"""Weights, checkpoints and activations in fewer bits: ``make weights``."""
