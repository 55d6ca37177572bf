"""Decides while a model trains how its gradients are averaged: see ``docs/auto.md``."""

from gradwire.torch.auto.choice import (
    AUTO,
    Automatic,
    check_alone,
    choices_of,
    codec_for,
    least_ratio,
)

__all__ = ["AUTO", "Automatic", "check_alone", "choices_of", "codec_for", "least_ratio"]
