"""What happens around training: Ctrl-C, forks, copies of models, threads that watch."""

import copy
import dataclasses
import os
import pickle
import signal
import threading
import time
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire import extension
from gradwire.torch.ddp import ExchangeError
from tests.distributed.scenarios.common import (
    SMALL_BUCKETS,
    attached,
    fingerprint,
    network,
    train,
)


class Stop(BaseException):
    """No `Exception`, as `SystemExit` and the panics of extensions are none."""


@dataclasses.dataclass(frozen=True, repr=False)
class Stops(extension.Sparsifier):
    """Stops in the third step of rank 1."""

    kind: ClassVar[str] = "stops"
    rank: int = 0

    def select(self, values: NDArray[np.float32], *, step: int, key: int) -> NDArray[Any]:
        """Return the first entries."""
        if step == 2 and self.rank == 1:
            raise Stop("stopped")
        return np.arange(8)

    def get_config(self) -> dict[str, Any]:
        """Leave the rank out: the codecs of all ranks must be the same."""
        return {"kind": self.kind}


def no_exception(rank: int, world_size: int) -> tuple[str, int | None]:
    """Raise what is no `Exception` where gradients are encoded."""
    codec = gradwire.Codec(sparsify=Stops(rank=rank))
    with attached(network(), codec, bucket_cap_mb=SMALL_BUCKETS) as (model, _):
        try:
            train(model, rank, range(4))
        except ExchangeError as error:
            return str(error), error.rank
    return "", None


def interrupted(rank: int, world_size: int) -> tuple[str, float]:
    """Press Ctrl-C on rank 1 while it waits for the other one to begin an epoch."""
    start = time.monotonic()
    try:
        with attached(network(), gradwire.topk(ratio=0.05)) as (model, handle):
            train(model, rank, range(2))
            if rank == 1:
                handler = signal.signal(signal.SIGINT, signal.default_int_handler)
                timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
                timer.start()
                try:
                    handle.epoch(1)
                    timer.join()
                finally:
                    signal.signal(signal.SIGINT, handler)
            else:
                time.sleep(3.0)
                handle.epoch(1)
    except (KeyboardInterrupt, ExchangeError) as error:
        return type(error).__name__, time.monotonic() - start
    return "", 0.0


def watched(rank: int, world_size: int) -> dict[str, Any]:
    """Report from another thread during training."""
    torch.manual_seed(0)
    counts, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.is_set():
            counts[0] += handle.report().residual_norm is not None
            handle.metrics()

    module = torch.nn.Sequential(
        torch.nn.Linear(32, 2048), torch.nn.Tanh(), torch.nn.Linear(2048, 16)
    )
    with attached(module, gradwire.topk(ratio=0.05), bucket_cap_mb=SMALL_BUCKETS) as (
        model,
        handle,
    ):
        thread = threading.Thread(target=watch)
        thread.start()
        try:
            train(model, rank, range(60))
        finally:
            ended.set()
            thread.join()
    return {"print": fingerprint(module), "reports": counts[0], "steps": handle.step}


def forked(rank: int, world_size: int) -> dict[str, Any]:
    """Leave a forked process by an exception, as a loader's worker may."""
    with attached(network(), gradwire.topk(ratio=0.05)) as (model, handle):
        train(model, rank, range(2))
        pid = os.fork()
        if pid == 0:
            mine = 1
            try:
                text = ""
                try:
                    handle.epoch(1)
                except ExchangeError as error:
                    text = str(error)
                handle.detach()
                mine = 5 if "forked after attach()" in text else 2
            finally:
                os._exit(mine)
        seconds = 0.0
        code: int | None = None
        while code is None and seconds < 60.0:
            time.sleep(0.05)
            seconds += 0.05
            ended, status = os.waitpid(pid, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if ended else None
        if code is None:
            os.kill(pid, signal.SIGKILL)
        handle.epoch(1)
        train(model, rank, range(2, 4))
        return {"code": code, "steps": handle.step, "print": fingerprint(model)}


def copied(rank: int, world_size: int) -> list[tuple[int, bool]]:
    """Train copies of a model that a codec is attached to, and attach codecs to them."""
    results = []
    with attached(network(), gradwire.topk(ratio=0.05)) as (model, _):
        train(model, rank, range(2))
        for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert isinstance(again, DistributedDataParallel)
            train(again, rank, range(2, 3))
            with gradwire.torch.ddp.attach(again, gradwire.topk(ratio=0.1)) as handle:
                train(again, rank, range(3, 5))
                results.append((handle.step, fingerprint(again) != fingerprint(model)))
    return results


def to_different_ranks(rank: int, world_size: int) -> str:
    """Gather to all ranks on one of them, and to itself on the other."""
    with attached(network(), gradwire.topk(ratio=0.05)) as (model, handle):
        train(model, rank, range(2))
        try:
            handle.gathered_state_dict(None if rank else 0)
        except ExchangeError as error:
            return str(error)
    return ""


def no_network(rank: int, world_size: int) -> tuple[str, int]:
    """Attach where Gloo finds no network, and then where it does."""
    model = DistributedDataParallel(network())
    text = ""
    with patch.dict(os.environ, GLOO_SOCKET_IFNAME="missing0"):
        try:
            gradwire.torch.ddp.attach(model, gradwire.topk(0.1))
        except ExchangeError as error:
            text = str(error)
    train(model, rank, range(2))
    with gradwire.torch.ddp.attach(model, gradwire.topk(0.1)) as handle:
        train(model, rank, range(2, 4))
        return text, handle.step
