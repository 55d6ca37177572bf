"""Measures the passes of a model, lets all ranks decide together, and changes the codecs."""

import dataclasses
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import torch

from gradwire._auto import FP32, OWNERS_FROM, Decider, Figures, Plan, Setting, combined
from gradwire._auto.decider import SETTLING
from gradwire.cost import Calibration
from gradwire.torch.auto.candidates import Automatic
from gradwire.torch.auto.probes import Measured
from gradwire.torch.auto.timings import BucketPlace, BucketRecord, PassRecord, Places, figures
from gradwire.torch.engine.backward import BackwardPasses
from gradwire.torch.engine.consensus import ControlChannel
from gradwire.torch.engine.optimizer_link import OptimizerLink
from gradwire.torch.engine.parameter import ParameterSlot
from gradwire.torch.engine.scheduler import AutoScheduler, ParameterPlan
from gradwire.torch.transport import Channel

_RECORDS = 64
"""Passes that medians are over, at most."""

_Buckets: TypeAlias = set[tuple[int, ...]]
"""Buckets, by the ids of their parameters."""


class AutoController:
    """Decides for each bucket of a model how it is averaged.

    Decisions are the same on all ranks: measurements are combined by one small collective, in the
    hook of the first bucket of a pass, the same pass on every rank. A bucket whose parameters are
    all dense is left to a plain all-reduce, as in DDP.

    The scheduler is told the ratio and the exchange of each parameter. ``ranks`` is the number of
    ranks that exchange gradients; if these are not all ranks, ``between`` is their channel: the
    ranks that own the same shards.
    """

    def __init__(
        self,
        choices: Automatic,
        parameters: Mapping[str, ParameterSlot],
        scheduler: AutoScheduler,
        passes: BackwardPasses,
        control: ControlChannel,
        applying: OptimizerLink | None,
        ranks: int,
        between: Channel | None = None,
    ) -> None:
        self._choices = choices
        self._by_id = {id(each.tensor): each for each in parameters.values()}
        self._scheduler = scheduler
        assert applying is not None  # "auto" needs an optimizer
        self._applying = applying
        self._additions = applying.follow_additions()
        self._added = False  # a pass has added to what was exchanged, on some rank
        self._passes: BackwardPasses = weakref.proxy(passes)  # which have this object
        self._control = control
        self._ranks = ranks
        self._between = between
        self._chosen = scheduler.chosen
        self._codes = self._chosen.codes
        self._half: _Buckets = set()  # that are averaged in bfloat16
        self._places: list[BucketPlace] = []
        self._seen = Places(halves=choices.halves)
        self._decider: Decider | None = None
        self._calibration: Calibration | None = None
        self._records: deque[PassRecord] = deque(maxlen=_RECORDS)
        self._current: PassRecord | None = None
        self._left = 0  # passes until the next look
        self._skipped = 0  # passes after a change that are still not to be measured
        self._restarts = passes.restarts
        # Of a step that sends all that residuals hold of parameters that become dense: the passes
        # that counted before it, and what is sent after it.
        self._flush: tuple[int, ParameterPlan, _Buckets] | None = None
        self._looks = 0
        self._looked = False  # where the present pass began

    # What the passes ask ----------------------------------------------------------------------

    @property
    def codes(self) -> bool:
        """Whether any bucket is compressed."""
        return self._codes

    @property
    def reason(self) -> str:
        """The reason for the present way of averaging, in a sentence."""
        if self._ranks == 1:
            return "There is only one rank, so there is nothing to exchange."
        found = "Measuring the first steps." if self._decider is None else self._decider.reason
        if self._added:
            found += (
                " The codec is not used, because the program adds up exchanged gradients, and the"
                " codec's updates cannot be added up: accumulate within no_sync()."
            )
        return found

    @property
    def plan(self) -> Plan:
        """The setting of each bucket; empty before the first complete pass."""
        return () if self._decider is None else self._decider.plan

    @property
    def meets(self) -> bool:
        """Whether ranks must synchronize at the start of the next pass; equal on all ranks."""
        if self._flush is not None or self._scheduler.chosen is not self._scheduler.saved:
            return True
        if self._decider is not None:
            return self._left <= 1
        # The next pass may make a decider, which may be due at once.
        current = self._current
        known = current is not None and current.complete and current.places == self._places
        return known and self._ranks > 1

    def interrupt(self) -> None:
        """Drop the measurements in progress: paused passes are not representative."""
        self._current = None

    def begin(self, since: float | None = None) -> BaseException | None:
        """Begin a pass, ready at ``since`` or now; return an error that broke the exchange."""
        late = self._choices.meets_late and self.meets
        error = self._begin(since)
        if late and self._current is not None:
            # It does not overlap as others do. A look that comes after so many passes comes after
            # as many that are timed.
            self._current.timed = False
            if self._looked and self._skipped == 0:
                self._left += 1
        return error

    def _begin(self, since: float | None) -> BaseException | None:
        now, previous = time.perf_counter() if since is None else since, self._current
        self._looked = False
        # Only the last passes before a look count.
        self._current = PassRecord(timed=self._left <= _RECORDS + 1)
        if self._passes.restarts != self._restarts:  # a checkpoint was loaded
            self._restarts = self._passes.restarts
            self._additions.found = self._additions.updates = self._added = False
            self._seen = Places(halves=self._choices.halves)
            self._restart()
            previous = None
        elif (
            self._ranks > 1
            and previous is not None
            and previous.complete
            and previous.places != self._places
        ):
            self._places = previous.places
            self._restart()
            previous = None
        if self._flush is not None:
            return self._passes.change(self._end_flush)
        if self._codes and not self._added and self._additions.updates:
            return self._passes.change(self._leave_for_good)
        if self._scheduler.chosen is not self._scheduler.saved:  # of a flush that has no end now
            return self._passes.change(lambda: self._send(self._scheduler.saved, self._half))
        if self._ranks == 1:
            return self._passes.change(self._leave) if self._is_left else None
        if self._scheduler.epoch_at(self._warm_step) != self._scheduler.epoch:
            self._skipped = max(self._skipped, SETTLING)
            return self._passes.change(lambda: self._send(self._chosen, self._half))
        if self._scheduler.warms_up:  # which tells nothing of the setting
            return None
        if previous is None or not previous.complete:
            return None
        previous.end = now
        if self._decider is None:  # the buckets of two passes were the same
            self._decider = Decider(tuple(map(self._setting, self._places)))
            self._left, self._skipped = self._decider.due, self._decider.skips
            choice = self._choice(self._decider.plan)
            if choice != self._chosen:  # buckets of several ratios, which have one now
                self._left, self._skipped = self._left + SETTLING, self._skipped + SETTLING
                return self._passes.change(lambda: self._change(choice, set(self._half)))
        self._left -= 1
        if self._skipped > 0:
            self._skipped -= 1
        elif previous.timed:
            self._records.append(previous)
        if self._left > 0:
            return None
        return self._passes.change(self._look)

    def take(self, tensors: Sequence[torch.Tensor], buffer: torch.Tensor, *, last: bool) -> bool:
        """Record that a bucket is ready; return whether to exchange it with the codec."""
        record, key = self._current, tuple(map(id, tensors))
        codes = self._codes and any(each.compressed for each in self._among(key))
        if record is None:
            return codes
        # A step that was encoded in parts ends with its last bucket.
        codes = codes or (last and record.codes)
        record.codes = record.codes or codes
        numel = None
        if self._between is not None:  # the same on all ranks, whose shards differ
            shares = self._control.size // self._ranks
            numel = sum(-(-each.numel() // shares) for each in tensors)
        record.places.append(self._seen.of(key, buffer, lambda: self._codable(key), numel))
        if record.timed:
            alone = buffer.device.type == "cpu" and torch.get_num_threads() == 1
            # A pass of shards waits for other ranks, too.
            worked = time.thread_time() if alone and self._between is None else None
            record.buckets.append(BucketRecord(time.perf_counter(), coded=codes, worked=worked))
            record.step = self._passes.last if codes else record.step
        if last:
            self.complete()
        return codes

    def complete(self) -> None:
        """Record that the latest bucket was the last of the pass."""
        if self._current is not None and self._current.places:
            self._current.complete = self._additions.waiting = True

    def dense(
        self, tensors: Sequence[torch.Tensor], buffer: torch.Tensor
    ) -> tuple[bool, Callable[[], None] | None]:
        """Return whether to average the last bucket in bfloat16, and a callback for its end.

        The callback is None if that time is not needed.
        """
        half = tuple(map(id, tensors)) in self._half
        if self._current is None or not self._current.timed:
            return half, None
        bucket = self._current.buckets[-1]
        # Ranks that cannot add up in bfloat16 send float32. A sparse gradient is gathered, and
        # tells nothing of the speed of an all-reduce.
        wide = buffer.dtype == torch.bfloat16 and not self._choices.halves
        itemsize = 2 if half else 4 if wide else buffer.element_size()
        nbytes = buffer.numel() * itemsize if buffer.layout == torch.strided else 0
        bucket.nbytes = 2.0 * (self._ranks - 1) / self._ranks * nbytes

        def ended() -> None:
            bucket.done = time.perf_counter()

        return half, ended

    def _codable(self, key: Iterable[int]) -> bool:
        return any(each.has_state for each in self._among(key))

    def _among(self, key: Iterable[int]) -> list[ParameterSlot]:
        """Return the attached parameters of a bucket."""
        return [self._by_id[each] for each in key if each in self._by_id]

    # Decisions --------------------------------------------------------------------------------

    def _restart(self) -> None:
        """Start measuring again: buckets have changed, or other ratios were loaded."""
        self._decider, self._chosen = None, self._scheduler.chosen
        self._codes = self._chosen.codes
        self._flush = None
        self._half.clear()
        self._records.clear()
        self._left = 0
        if self._current is not None:
            self._current.timed = True

    def _setting(self, place: BucketPlace) -> Setting:
        """Return the setting of a bucket that is in use."""
        known = [self._by_id.get(each) for each in place.key]
        names = [each.name for each in known if each is not None and each.compressed]
        if names:
            ratio = self._chosen.ratios[names[0]] if self._choices.ratios else None
            through = self._chosen.owned.issuperset(names)
            return Setting("codec", ratio, "owners" if through else "gather")
        return Setting("bf16") if place.key in self._half else FP32

    def _look(self) -> None:
        """Decide on all ranks from the measurements, and carry out the decision."""
        decider = self._decider
        assert decider is not None  # it was due
        self._looks += 1
        self._looked = True
        mine = figures(self._places, len(self._by_id), list(self._records))
        with self._control.act(f"decision {self._looks} of auto") as channel:
            given = channel.all_gather_object(
                [None if mine is None else mine.to_json(), self._additions.found]
            )
            if not self._added and any(adds for _, adds in given):
                self._leave_out_codec()
                return
            every = [each for each, _ in given]
            known = [Figures.from_json(each) for each in every if each is not None]
            if len(known) < len(every):  # a rank knows no whole pass
                self._left = 2
                return
            evidence = Measured(
                self._choices, channel, decider.plan, self._calibration, self._between
            )
            before = decider.plan
            plan = decider.look(combined(known), evidence)
            self._calibration = evidence.calibration
        if not decider.keeps:
            self._records.clear()
        self._left = decider.due
        if plan != before:
            self._skipped = decider.skips
            pairs = zip(self._places, plan, strict=True)
            half = {place.key for place, each in pairs if each.kind == "bf16"}
            self._change(self._choice(plan), half)

    def _leave_for_good(self) -> None:
        """Stop using the codec for good: the present pass would be added to its updates."""
        self._leave_out_codec()
        self._leave()

    def _leave_out_codec(self) -> None:
        """From now on, choose among all-reduces only, and start measuring again."""
        self._added = True
        self._seen = Places(halves=self._choices.halves, codes=False)
        self._places = [dataclasses.replace(each, codable=False) for each in self._places]
        self._decider = None
        self._records.clear()

    @property
    def _warm_step(self) -> int | None:
        """The step of the codec's warm-up; None where it would disturb a measurement."""
        settled = self._decider is not None and self._decider.settled
        return self._passes.step if settled and self._codes else None

    @property
    def _is_left(self) -> bool:
        """Whether a single rank still compresses, with nothing to exchange."""
        every = self._by_id.values() if self._codes else ()
        return any(each.compressed and each.tensor.requires_grad for each in every)

    def _leave(self) -> None:
        """Stop compressing: a single rank has nothing to exchange."""
        ratios, every = self._chosen.ratios, self._by_id.values()
        gone = {each.name for each in every if each.tensor.requires_grad}
        ratios = {name: None if name in gone else ratio for name, ratio in ratios.items()}
        self._change(ParameterPlan(ratios, self._chosen.owned), set())

    def _change(self, target: ParameterPlan, half: _Buckets) -> None:
        """Apply the plan, after sending the residuals of parameters that become uncompressed."""
        leaving = [each for each in self._leavers(target) if each.codec.memory.keeps]
        if not leaving or not self._choices.ratios:
            self._arrive(target, half)
            return
        self._flush = self._passes.step, target, half
        # A run that resumes in between continues as before, and decides again. Owners asked for
        # all entries send all of their sums: the time and memory of two frames, not of N.
        every = {each.name: 1.0 for each in leaving}
        owned = self._chosen.owned
        by_owners = self._choices.owners is not None and self._ranks >= OWNERS_FROM
        owned = owned | every.keys() if by_owners else owned - every.keys()
        plan = ParameterPlan({**self._chosen.ratios, **every}, owned)
        self._send(plan, self._half, saved=self._chosen)

    def _end_flush(self) -> None:
        """Apply the plan after a flush of residuals, if the flushing pass counted."""
        assert self._flush is not None
        step, target, half = self._flush
        if self._passes.step > step:
            self._flush = None
            self._arrive(target, half)

    def _arrive(self, target: ParameterPlan, half: _Buckets) -> None:
        """Apply the plan, after handing moments of uncompressed parameters to the optimizer."""
        leaving = [each for each in self._leavers(target) if each.codec.memory.updates]
        if leaving:
            with self._control.act("moments of auto") as channel:
                self._applying.give_back(leaving, self._between or channel)
        self._send(target, half)

    def _leavers(self, target: ParameterPlan) -> list[ParameterSlot]:
        every = self._by_id.values()
        return [each for each in every if each.compressed and target.ratios[each.name] is None]

    def _send(
        self, chosen: ParameterPlan, half: _Buckets, *, saved: ParameterPlan | None = None
    ) -> None:
        """Use a plan from now on; a checkpoint has the plan ``saved``, if given."""
        self._half, self._chosen, self._codes = half, chosen, chosen.codes
        self._scheduler.choose(chosen, saved=saved, step=self._warm_step)
        self._passes.forget()

    def _choice(self, plan: Plan) -> ParameterPlan:
        """Return how each compressed parameter is sent."""
        # What is in no bucket now, as a frozen parameter, stays as it is: no pass could send it.
        found, owned = dict(self._chosen.ratios), set(self._chosen.owned)
        for place, setting in zip(self._places, plan, strict=True):
            codes = setting.kind == "codec"
            for each in self._among(place.key):
                if not each.has_state:
                    continue
                found[each.name] = (setting.ratio or 1.0) if codes else None
                if codes and setting.exchange == "owners":
                    owned.add(each.name)
                else:
                    owned.discard(each.name)
        return ParameterPlan(found, frozenset(owned))
