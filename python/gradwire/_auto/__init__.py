"""Chooses the setting of a whole model from the times of its steps, without torch or a clock.

`gradwire.torch.auto` measures, and asks a `Decider`: see ``docs/auto-inside.md``.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, get_args

Setting: TypeAlias = Literal["uncompressed", "bfloat16", "codec"]
"""How all gradients of a model are averaged."""

SETTINGS: tuple[Setting, ...] = get_args(Setting)
"""All settings, the mildest first."""

GAIN = 0.03
"""Share of a step that a setting must gain over a milder one."""
SETTLING = 2
"""Steps after a change that are not measured: buffers are allocated, sizes of frames are learnt."""
STEPS, SECONDS = 5, 0.25
"""Least steps and seconds of a probe that does not lose."""
EARLY, LOST = 3, 1.3
"""Steps after which a probe ends if they take so many times as long as the best known ones."""
CLOSE = 1.1
"""Ratio of steps up to which settings are probed twice in a round."""
PROBES = 4
"""Probes of a setting whose median counts, as long as steps do not drift."""
DRIFT, TWICE = 1.3, 2
"""Factor by which steps may become longer or shorter, and checks in a row that find more."""
SHORTEST, LONGEST, LATEST = 8, 256, 60.0
"""Bounds of the steps between two checks, and the most seconds between them."""
RARELY = 100.0
"""A round of probes begins after so many times the seconds of the last one: 1 % of the time."""


def fastest(seconds: Mapping[Setting, float]) -> Setting:
    """Return the mildest setting whose step no other one shortens by `GAIN` or more."""
    best = min(seconds.values())
    return next(
        setting for setting in SETTINGS if (1.0 - GAIN) * seconds.get(setting, math.inf) < best
    )


class Decider:
    """The decisions of one attachment; the same figures lead to the same decisions everywhere.

    A round probes every setting, first the one in use, and those within 10 % of the fastest once
    more: other programs may have slowed down one of them. It ends with the fastest. Checks come
    at growing intervals. A new round begins if two checks in a row find that steps have become
    longer or shorter by 30 %, and otherwise so rarely that rounds take 1 % of the time.

    With steps of 100, 60 and 20 ms, the rounds' probes take 5, 5 and 13 steps, which is a quarter
    of a second or more, and the codec is kept. A round in which it is in use already ends the other
    probes after 3 steps each.
    """

    def __init__(self, settings: Sequence[Setting], setting: Setting) -> None:
        self.setting = setting  # to use from now on
        self.due = STEPS  # measured steps until the next look
        self.keeps = False  # whether the steps measured so far count at the next look as well
        self.seconds: dict[Setting, float] = {}  # of a step, as far as known
        self.settled = False
        self._settings = list(settings)
        self._probes: dict[Setting, list[float]] = {}
        self._interval = SHORTEST
        self._begin(setting)

    def look(self, seconds: float, elapsed: float) -> None:
        """Set `setting`, `due` and `keeps` for the next steps.

        ``seconds`` is the median step since the last look or, with `keeps`, since the look before
        it; ``elapsed`` is the time since the last look. Both are those of the slowest rank.
        """
        self.keeps = False
        (self._check if self.settled else self._probe)(seconds, elapsed)

    def leave_out(self, setting: Setting) -> None:
        """Choose among the other settings from now on."""
        self._settings.remove(setting)
        self._probes.clear()
        self._begin(SETTINGS[0] if self.setting == setting else self.setting)

    def _begin(self, first: Setting) -> None:
        self.settled = self.keeps = self._again = False
        self._took = 0.0
        self._round: dict[Setting, float] = {}
        self._waiting = [setting for setting in self._settings if setting != first]
        self._try(first)

    def _try(self, setting: Setting) -> None:
        self.setting, self._steps = setting, 0
        self.due = EARLY if self._round else STEPS

    def _probe(self, seconds: float, elapsed: float) -> None:
        self._took += elapsed
        self._steps += self.due
        lost = bool(self._round) and seconds > LOST * min(self._round.values())
        needed = max(STEPS, math.ceil(SECONDS / max(seconds, 1e-6)))
        if self._steps < needed and not lost:
            self.due, self.keeps = needed - self._steps, True
            return
        self._round[self.setting] = seconds
        self._probes[self.setting] = [*self._probes.get(self.setting, []), seconds][-PROBES:]
        if not self._waiting and not self._again:
            self._again = True
            near = CLOSE * min(self._round.values())
            close = [setting for setting in self._settings if self._round[setting] < near]
            self._waiting = close if len(close) > 1 else []
        if self._waiting:
            self._try(self._waiting.pop(0))
            return
        self.seconds = {
            setting: statistics.median(self._probes[setting]) for setting in self._round
        }
        self.setting, self.settled = fastest(self.seconds), True
        self._reference, self._strange, self._passed = self._round[self.setting], 0, 0.0
        self._wait(self._reference)

    def _check(self, seconds: float, elapsed: float) -> None:
        self._passed += elapsed
        alike = self._reference / DRIFT < seconds < DRIFT * self._reference
        self._strange = 0 if alike else self._strange + 1
        if self._strange >= TWICE:
            self._probes.clear()  # of another link, or of other steps
            self._begin(self.setting)
        elif self._passed >= RARELY * self._took:
            self._begin(self.setting)
        else:
            self._wait(seconds)

    def _wait(self, seconds: float) -> None:
        """Set the steps until the next check. Intervals never shrink, or drift could cost most."""
        self.due = max(SHORTEST, min(self._interval, int(LATEST / max(seconds, 1e-6))))
        self._interval = min(2 * self._interval, LONGEST)
