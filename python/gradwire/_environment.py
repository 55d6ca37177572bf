"""Warnings, once at import, about environment variables whose values cannot be used."""

import warnings

from gradwire import _native


def warn() -> None:
    """Warn about each variable whose value is ignored."""
    for complaint in _native.environment_complaints():
        warnings.warn(complaint, RuntimeWarning, stacklevel=3)
