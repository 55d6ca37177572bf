"""Decides while a model trains how each of its buckets is averaged: see ``docs/auto.md``."""

from gradwire.torch.auto.choosing import (
    AUTO,
    Automatic,
    check_alone,
    check_measurable,
    check_unbounded,
    codec_for,
    least_ratio,
)
from gradwire.torch.auto.pilot import Pilot

__all__ = [
    "AUTO",
    "Automatic",
    "Pilot",
    "check_alone",
    "check_measurable",
    "check_unbounded",
    "codec_for",
    "least_ratio",
]
