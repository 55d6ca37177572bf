"""Decides while a model trains how its gradients are averaged: see ``docs/auto.md``."""

from gradwire.torch.auto.choice import AUTO, Automatic, choices_of, clipped

__all__ = ["AUTO", "Automatic", "choices_of", "clipped"]
