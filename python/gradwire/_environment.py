"""Environment variables that ask for what cannot be had are said aloud, once, at import."""

import warnings

from gradwire import _native


def warn() -> None:
    """Warn of each variable whose value is ignored."""
    for complaint in _native.environment_complaints():
        warnings.warn(complaint, RuntimeWarning, stacklevel=3)
