"""Decides while a model trains how each of its buckets is averaged: see ``docs/auto-inside.md``."""

from gradwire.torch.auto.candidates import (
    AUTO,
    Automatic,
    check_alone,
    check_measurable,
    choices_of,
    codec_for,
    default_codec,
    least_ratio,
)
from gradwire.torch.auto.controller import AutoController

__all__ = [
    "AUTO",
    "AutoController",
    "Automatic",
    "check_alone",
    "check_measurable",
    "choices_of",
    "codec_for",
    "default_codec",
    "least_ratio",
]
