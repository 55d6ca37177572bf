"""Times the steps of a model, lets all ranks decide together, and changes the setting."""

import dataclasses
import statistics
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from numpy.typing import NDArray

from gradwire._auto import SETTINGS, SETTLING, Decider, Setting
from gradwire._codec import EXACT, Codec
from gradwire.schedule import BySteps
from gradwire.schedule.base import with_ratio
from gradwire.sparsify import All
from gradwire.torch.engine.backward import BackwardPasses
from gradwire.torch.engine.engine import Engine
from gradwire.torch.engine.optimizer_link import OptimizerLinks
from gradwire.torch.engine.pairing import PairingWarning
from gradwire.torch.engine.parameter import ParameterSlot, new_state, set_codec
from gradwire.torch.engine.scheduler import Position, Scheduler
from gradwire.torch.errors import fresh, warn

EVERYTHING = "everything"
"""The mode beside the settings: the codec with all entries, which empties the residuals."""


class AutoScheduler(Scheduler):
    """A scheduler whose mode is the setting of the model, changed on all ranks in the same step.

    Its schedule is a warm-up of the codec, or none. While ``probing``, the warm-up counts as over,
    because a probe is to show how long later steps take.
    """

    probing = True

    @property
    def mode(self) -> str:
        """The setting in use, or `EVERYTHING`."""
        return self._at.mode or SETTINGS[0]

    @property
    def codes(self) -> bool:
        """Whether gradients go by the codec."""
        return self.mode in ("codec", EVERYTHING)

    @property
    def ratio(self) -> float | None:
        """The ratio of the codec, if it has one."""
        return next(
            (getattr(codec.sparsify, "ratio", None) for codec in self._codecs.values()), None
        )

    @property
    def empties(self) -> bool:
        """Whether residuals must be sent before the codec is left."""
        return any(_whole(codec) != codec for codec in self._codecs.values())

    @property
    def warms_up(self) -> bool:
        """Whether the codec still sends more than it will: such steps are not measured."""
        warm_up = self.schedule
        return self.mode == "codec" and isinstance(warm_up, BySteps) and self.epoch != warm_up.last

    def choose(self, mode: str, *, probing: bool) -> None:
        """Change the mode. Call `BackwardPasses.forget` afterwards, to drop all layouts."""
        self.probing = probing
        epoch = self._epoch_at(0) if probing else self.epoch
        self._move(dataclasses.replace(self._at, mode=mode, epoch=epoch))

    def _epoch_at(self, step: int) -> int:
        """Return the epoch of the warm-up at a step with the codec; the last one in a probe."""
        warm_up = self.schedule
        if not isinstance(warm_up, BySteps):
            return self.epoch
        last = warm_up.last if self.probing else None
        return warm_up.epoch_at(step) if last is None else last

    def is_due(self, step: int) -> bool:
        """Tell whether the warm-up must advance at this step."""
        return self._epoch_at(step) != self.epoch

    def advance_to(self, step: int) -> None:
        """Advance the warm-up, on all ranks at the same step."""
        self._move(dataclasses.replace(self._at, epoch=self._epoch_at(step)))

    def _codec(self, name: str, position: Position) -> Codec | None:
        if position.mode == EVERYTHING:
            return _whole(self._codecs[name])
        return super()._codec(name, position) if position.mode == "codec" else None

    def take(self, position: Position) -> None:
        """Continue from a position. This cannot fail."""
        super().take(position)
        for name, parameter in self._parameters.items():
            if parameter.paused:
                set_codec(parameter, self._codecs[name])

    def state_dict(self) -> dict[str, Any]:
        """Return the position and the setting; a run that resumes has still to empty residuals."""
        return {**super().state_dict(), "setting": "codec" if self.codes else self.mode}

    def prepare(self, saved: Mapping[str, Any], measured: Mapping[str, NDArray[Any]]) -> Position:
        """Return a saved position. One without decisions of "auto" is of a run with the codec."""
        mode = saved.get("setting", "codec")
        if mode not in SETTINGS:
            raise ValueError(f"the schedule's setting must be one of {SETTINGS}, got {mode!r}")
        position = super().prepare(saved, measured)
        return self._computed(dataclasses.replace(position, mode=mode))


def _whole(codec: Codec) -> Codec:
    """Return a codec that sends all entries as they are, and with them what its memory has kept."""
    if not (codec.memory.keeps and hasattr(codec.sparsify, "ratio")):
        return codec
    if not codec.memory.corrects:
        return with_ratio(codec, 1.0).replace(quantize=EXACT)
    # Sampling could miss some. Without masking, momentum stays: the optimizer goes on with it.
    memory: Any = codec.memory
    if not memory.estimates:
        memory = dataclasses.replace(memory, masking=False)
    return codec.replace(sparsify=All(), quantize=EXACT, memory=memory)


_ADDED_UP = (
    'each step adds up several exchanged backward passes, so "auto" does not try the codec, whose '
    "updates cannot be added to. To compress them, and to exchange once per step, run all passes "
    "but the last within model.no_sync(), or with Horovod pass backward_passes_per_step="
)


class StepClock:
    """Measures the steps between its marks.

    On the host a mark is a time. On a device, which works behind the host, it is an event on the
    current stream, and only `median` waits for it. On devices, this is untested.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[Any] = []
        self._looked: float | None = None

    def clear(self) -> None:
        """Forget all marks."""
        self._marks.clear()

    def mark(self) -> int:
        """Record the end of a step; return how many steps are known."""
        now: Any = time.perf_counter()
        self._looked = self._looked or now
        if self._device.type != "cpu":
            now = torch.Event(self._device, enable_timing=True)
            now.record()
        self._marks.append(now)
        return len(self._marks) - 1

    def median(self) -> float:
        """Return the median step in seconds."""
        pairs = zip(self._marks[:-1], self._marks[1:], strict=True)
        if self._device.type == "cpu":
            return float(statistics.median(end - start for start, end in pairs))
        self._marks[-1].synchronize()
        return float(statistics.median(start.elapsed_time(end) for start, end in pairs)) / 1e3

    def elapsed(self) -> float:
        """Return the seconds since the last call, or the first mark, by the host."""
        before, self._looked = self._looked, time.perf_counter()
        return 0.0 if before is None else self._looked - before


class AutoController:
    """Chooses among uncompressed averages, bfloat16 and the codec for all of a model.

    A step lasts from one call of the optimizer's ``step()`` to the next, if something was exchanged
    in between: in the backward pass or in ``step()`` itself. With several optimizers, it lasts
    until each has made one. At its end nothing is in progress, and all ranks are there. So there
    they tell each other their figures, in one gather, and decide the same from the same figures; a
    change takes effect with the next pass.

    ``reason`` tells what was measured and chosen.
    """

    def __init__(
        self,
        parameters: Mapping[str, ParameterSlot],
        scheduler: AutoScheduler,
        passes: BackwardPasses,
        engine: Engine,
        links: OptimizerLinks,
        joining: Callable[[], bool],
    ) -> None:
        trained = [slot for slot in parameters.values() if slot.tensor.requires_grad]
        self._coded = [slot for slot in parameters.values() if slot.has_state]
        self._settings: list[Setting] = ["uncompressed"]
        if engine.place.nodes > 1:
            if any(slot.tensor.dtype == torch.float32 for slot in trained):
                self._settings.append("bfloat16")
            if any(slot.has_state for slot in trained):
                self._settings.append("codec")
        self._scheduler = scheduler
        self._passes: BackwardPasses = weakref.proxy(passes)  # which have this object
        self._control, self._peers, self._place = engine.control, engine.peers, engine.place
        self._links = links
        self._joining = joining
        device = next((slot.tensor.device for slot in trained), torch.device("cpu"))
        self._clock = StepClock(device)
        self._looks = 0
        links.defer()
        links.after_step(self.stepped)
        self._restart()

    def _restart(self) -> None:
        mode, self._restarts = self._scheduler.mode, self._passes.restarts
        self._target = next((setting for setting in self._settings if setting == mode), SETTINGS[0])
        self._decider = Decider(self._settings, self._target)
        self._scheduler.probing = True
        self._refit()
        self._emptied: int | None = None  # passes that counted before the residuals are sent
        self._passed = 0  # passes exchanged since the last step
        self._adds = True  # every step since the last look has added up several passes
        self.reason = "Measuring the first steps."
        if self._place.nodes == 1:
            self.reason = "There is only one rank, so there is nothing to exchange."
        self._wait()

    @property
    def half(self) -> bool:
        """Whether buckets that do not are averaged in bfloat16."""
        return self._scheduler.mode == "bfloat16" and "bfloat16" in self._settings

    def passed(self) -> bool:
        """Record that a pass is exchanged; return whether its buckets go by the codec."""
        if self._passes.restarts != self._restarts:  # a checkpoint was loaded
            self._restart()
        self._passed += 1
        return self._scheduler.codes

    def stepped(self) -> None:
        """Note the end of a step; decide if it is time, on all ranks in the same step.

        Raises an ExchangeError if a rank was lost.
        """
        passed, self._passed = self._passed, 0
        if not passed:  # as the steps by which states are made for a checkpoint
            return
        if self._joining():  # a rank without inputs makes no steps
            self.reason = "Nothing is measured within join()."
            self._wait()
            return
        self._adds = self._adds and passed > 1
        if self._emptied is not None:
            if self._passes.step > self._emptied:
                self._act(self._arrive)
        elif self._scheduler.mode != self._target:  # of a checkpoint; it does not apply here
            self._act(lambda: self._change(self._target))
        elif self._scheduler.warms_up or len(self._settings) == 1:
            self._wait(0)
        elif self._settling > 0:
            self._wait(self._settling - 1)
        elif self._clock.mark() >= self._due:
            known = len(self._settings)
            self._act(self._look)
            if len(self._settings) < known:
                warn(_ADDED_UP, PairingWarning)

    def _act(self, act: Callable[[], None]) -> None:
        error = self._passes.change(act)
        if error is not None:
            raise fresh(error)

    def _wait(self, settling: int = SETTLING) -> None:
        """Measure anew, from the end of this step or of one of the next."""
        self._clock.clear()
        self._settling, self._due = settling, self._decider.due
        if settling == 0:
            self._clock.mark()

    def _look(self) -> None:
        """Decide on all ranks from the figures of all ranks."""
        self._looks += 1
        adds = self._adds and any(slot.computed for slot in self._coded)
        mine = f"{self._clock.median():.6e} {self._clock.elapsed():.3e} {adds:d}"
        every = self._control.compare(f"decision {self._looks} of auto", mine)
        rows = [[float(number) for number in one.split()] for one in every]
        seconds, elapsed, added = map(max, zip(*rows, strict=True))
        self._adds, before, decider = True, self._decider.setting, self._decider
        if added and "codec" in self._settings:
            self._settings.remove("codec")
            decider.leave_out("codec")
        else:
            decider.look(seconds, elapsed)
        self._scheduler.probing = not decider.settled
        if decider.settled:
            self._explain(decider)
        if decider.setting != before:
            self._change(decider.setting)
        elif decider.keeps:
            self._due += decider.due
        else:
            self._wait(0)

    def _change(self, setting: Setting) -> None:
        """Change the setting; if the codec is left, after a step that sends all residuals."""
        self._target = setting
        if self._scheduler.codes and setting != "codec" and self._scheduler.empties:
            self._emptied = self._passes.step
            self._send(EVERYTHING)
        else:
            self._arrive()

    def _arrive(self) -> None:
        """Use the setting that was decided on; the optimizer goes on with the codec's moments."""
        self._emptied = None
        if self._scheduler.codes and self._target != "codec":
            with self._control.act("moments of auto") as channel:
                self._links.give_back(self._coded, self._peers or channel)
        self._send(self._target)
        if self._target == "codec":
            self._links.take_over(anew=True)

    def _send(self, mode: str) -> None:
        self._scheduler.choose(mode, probing=not self._decider.settled)
        self._refit()
        self._passes.forget()
        self._wait()

    def _refit(self) -> None:
        """Replace states whose codec differs in more than the ratio: it rounds or masks, or not."""
        for slot in self._coded:
            if not slot.codec._codec.same_kind(slot.state.codec._codec):
                held = {**slot.state.state_dict(), "config": slot.codec.get_config()}
                slot.state = new_state(slot, self._place.rank)
                slot.state.load_state_dict(held)

    def _explain(self, decider: Decider) -> None:
        ratio = self._scheduler.ratio
        codec = "the codec" if ratio is None else f"the codec at ratio {ratio:g}"
        names = {"bfloat16": "in bfloat16", "codec": f"with {codec}"}
        figures = {
            setting: (f"{1e3 * s:{'.0f' if s >= 0.1 else '.3g'}} ms", names.get(setting, setting))
            for setting, s in decider.seconds.items()
        }
        chosen, name = figures.pop(decider.setting)
        others = ", ".join(map(" ".join, figures.values()))
        self.reason = f"Using {name.removeprefix('with ')}: {chosen} per step; measured {others}."
