"""Every preset, one line each, in display order: importing one registers it.

Nothing else is public here, so that a star import of this module imports the presets.
"""

# isort: off
from gradwire.presets._adam import adam as adam
from gradwire.presets._adam import adam_onebit as adam_onebit
from gradwire.presets._topk import topk as topk
from gradwire.presets._sidco import sidco as sidco
from gradwire.presets._dgc import dgc as dgc
from gradwire.presets._scalecom import scalecom as scalecom
from gradwire.presets._threshold import threshold as threshold
from gradwire.presets._powersgd import powersgd as powersgd
from gradwire.presets._randomk import randomk as randomk
from gradwire.presets._dense import dense as dense
from gradwire.presets._natural import natural as natural
from gradwire.presets._float8 import float8 as float8
from gradwire.presets._onebit import onebit as onebit
from gradwire.presets._signsgd import signsgd as signsgd
from gradwire.presets._terngrad import terngrad as terngrad
from gradwire.presets._qsgd import qsgd as qsgd
from gradwire.presets._gaussiank import gaussiank as gaussiank
from gradwire.presets._redsync import redsync as redsync
from gradwire.presets._adacomp import adacomp as adacomp
from gradwire.presets._adaptive import adaptive as adaptive
from gradwire.presets._strom import strom as strom
from gradwire.presets._sparseloco import sparseloco as sparseloco
