"""Published methods and common baselines, each a composition of parts.

`PRESETS` lists them by name for tools and command lines.
"""

from collections.abc import Mapping

from gradwire.presets import (
    _adacomp,
    _adaptive,
    _dense,
    _dgc,
    _float8,
    _gaussiank,
    _natural,
    _onebit,
    _qsgd,
    _randomk,
    _redsync,
    _scalecom,
    _sidco,
    _signsgd,
    _sparseloco,
    _strom,
    _terngrad,
    _threshold,
    _topk,
)
from gradwire.presets._adacomp import adacomp
from gradwire.presets._adaptive import adaptive
from gradwire.presets._dense import dense
from gradwire.presets._dgc import dgc
from gradwire.presets._float8 import float8
from gradwire.presets._gaussiank import gaussiank
from gradwire.presets._natural import natural
from gradwire.presets._onebit import onebit
from gradwire.presets._preset import Preset
from gradwire.presets._qsgd import qsgd
from gradwire.presets._randomk import randomk
from gradwire.presets._redsync import redsync
from gradwire.presets._registry import Registry
from gradwire.presets._scalecom import scalecom
from gradwire.presets._sidco import sidco
from gradwire.presets._signsgd import signsgd
from gradwire.presets._sparseloco import sparseloco
from gradwire.presets._strom import strom
from gradwire.presets._terngrad import terngrad
from gradwire.presets._threshold import threshold
from gradwire.presets._topk import topk

__all__ = [
    "PRESETS",
    "Preset",
    "adacomp",
    "adaptive",
    "dense",
    "dgc",
    "float8",
    "gaussiank",
    "natural",
    "onebit",
    "qsgd",
    "randomk",
    "redsync",
    "scalecom",
    "sidco",
    "signsgd",
    "sparseloco",
    "strom",
    "terngrad",
    "threshold",
    "topk",
]

PRESETS: Mapping[str, Preset] = Registry(
    each.PRESET
    for each in (
        _topk,
        _sidco,
        _dgc,
        _scalecom,
        _threshold,
        _randomk,
        _dense,
        _natural,
        _float8,
        _onebit,
        _signsgd,
        _terngrad,
        _qsgd,
        _gaussiank,
        _redsync,
        _adacomp,
        _adaptive,
        _strom,
        _sparseloco,
    )
)
"""All presets by name, in display order; those of plugins come last."""
