"""Collective calls with buckets from the program, each a separate step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from gradwire.torch.engine.bucket_contents import BucketContents
from gradwire.torch.engine.consensus import ControlChannel, Devices, agree, checksum
from gradwire.torch.engine.engine import Engine, left_on_error
from gradwire.torch.engine.step import Step
from gradwire.torch.errors import AgreementError, ExchangeError, fresh
from gradwire.torch.exchange import ExchangeRouter
from gradwire.torch.transport import RankTopology, Transport


@dataclass(frozen=True, slots=True)
class Call:
    """One call of all ranks."""

    name: str  # at most 32 ASCII characters
    number: int  # the same on all ranks
    facts: dict[str, Any]  # what has to be the same on all ranks
    on_messages: Callable[[list[str]], None] | None = None  # called in the sending thread
    message: str = ""  # at most 8 ASCII characters for the other ranks


@dataclass(frozen=True, slots=True, eq=False)
class Started:
    """A call in progress: its step, and one future per bucket for the averages.

    The futures are resolved whether or not the call succeeds.
    """

    step: Step
    futures: "list[torch.futures.Future[torch.Tensor]]"

    @property
    def done(self) -> bool:
        """Whether `averages` would return at once."""
        return all(future.done() for future in self.futures)

    def averages(self) -> list[torch.Tensor]:
        """Wait, and return the buffers with the averages in them.

        Raises a GradientError, ExchangeError or AgreementError if the call failed; every state is
        as before then.
        """
        averages = [future.wait() for future in self.futures]
        if self.step.error is not None:
            raise fresh(self.step.error)
        return averages


def connect(transport: Transport, like: Sequence[torch.Tensor]) -> Engine:
    """Connect ranks for calls of `start` with buckets of any codec. A collective.

    Later tensors must be on the devices of the given ones. The transport is left if this fails.
    """
    with left_on_error(transport):
        devices = Devices(like)
        messages = transport.make()
        devices.agree(messages)
        device_backends = transport.device_backends(like)
        devices.warn_of_copies(device_backends)
        agree(messages, "connected", {"carriers of frames": device_backends})
        frames = transport.make(device_backends)
        transport.connect(frames, device_backends, like)
        exchange = ExchangeRouter(frames, transport.make(), device_backends)
        place = RankTopology.alone(messages.rank, messages.size)
        return Engine(exchange, ControlChannel(messages), place, transport)


def start(
    engine: Engine, call: Call, buckets: Sequence[tuple[BucketContents, torch.Tensor]]
) -> Started:
    """Start to exchange flat buffers, after checking that all ranks make the same call.

    Raises an ExchangeError if an earlier call broke the exchange, or it is closed.
    """
    control, pipeline = engine.control, engine.pipeline
    if pipeline.broken is not None:
        raise fresh(pipeline.broken)
    if not engine.alive:
        raise ExchangeError("closed: its channels no longer exist")
    step = Step(call.number, prepare=lambda: _agree(control, call, buckets))
    last = len(buckets) - 1
    futures = [
        pipeline.submit(step, contents, buffer, last=at == last, unused=False)
        for at, (contents, buffer) in enumerate(buckets)
    ]
    return Started(step, futures)


def group_of(process_group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Return a process group, by default of all ranks; raise if this rank is not in it."""
    if process_group is None:
        process_group = dist.group.WORLD  # None before init_process_group()
    if not isinstance(process_group, dist.ProcessGroup):
        raise ValueError(
            "group must be a process group that this rank is in, after torch.distributed."
            f"init_process_group(); got {process_group!r}"
        )
    return process_group


def _agree(
    control: ControlChannel, call: Call, buckets: Sequence[tuple[BucketContents, torch.Tensor]]
) -> None:
    """Compare a call with those of the other ranks before anything is exchanged.

    Size limits are computed from sizes that all ranks observed. If the ranks' observations differ,
    as after loading a state, all start again with room for any frame.
    """
    parameters = [slot for contents, _ in buckets for slot in contents.compressed]
    limits = [slot.limit.state() for slot in parameters]
    own = f"{checksum(sorted(call.facts.items())):08x}{checksum(limits):08x}{call.message}"
    messages = control.compare(call.name, own)
    if any(message[:8] != own[:8] for message in messages):
        try:
            with control.act("disagreement") as channel:
                agree(channel, f"called {call.name}", call.facts)
        except ValueError as error:
            raise AgreementError(str(error)) from None
    if any(message[8:16] != own[8:16] for message in messages):
        for slot in parameters:
            slot.limit.reset()
    if call.on_messages is not None:
        call.on_messages([message[16:] for message in messages])
