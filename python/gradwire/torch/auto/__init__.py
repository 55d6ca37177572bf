"""Decides while a model trains how each of its buckets is averaged: see ``docs/auto.md``."""

from gradwire.torch.auto.candidates import (
    AUTO,
    Automatic,
    check_alone,
    check_measurable,
    check_unbounded,
    choices_of,
    codec_for,
    least_ratio,
)
from gradwire.torch.auto.controller import AutoController

__all__ = [
    "AUTO",
    "AutoController",
    "Automatic",
    "check_alone",
    "check_measurable",
    "check_unbounded",
    "choices_of",
    "codec_for",
    "least_ratio",
]
