"""Warnings that name a line of the program."""

import os
import sys
import warnings

import torch

import gradwire

__all__ = ["warn"]

_INNER = tuple(
    os.path.dirname(each.__file__) + os.sep for each in (gradwire, torch) if each.__file__
)
"""Where the sources of gradwire and torch are."""


def warn(text: str, category: type[Warning]) -> None:
    """Warn of the line of the program that called gradwire, or one of torch's functions."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INNER):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)
