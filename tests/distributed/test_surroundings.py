"""Training among threads, forks, copies and Ctrl-C: nothing hangs, aborts or gets out of step."""

import copy
import dataclasses
import os
import pickle
import re
import signal
import threading
import time
from typing import ClassVar
from unittest import mock

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from gradwire import extension
from gradwire.torch.ddp import ExchangeError
from tests.distributed.codecs import CODECS, SEVERAL
from tests.distributed.ranks import alike, on
from tests.distributed.scenarios.common import attached, fingerprint, network, train

TOPK = CODECS["default"]


class Stop(BaseException):
    """No `Exception`, as `SystemExit` and the panics of extensions are none."""


@dataclasses.dataclass(frozen=True, repr=False)
class Stops(extension.Sparsifier):
    """Stops in the third step of rank 1."""

    kind: ClassVar[str] = "stops"
    rank: int = 0

    def select(self, values, *, step, key):
        if step == 2 and self.rank == 1:
            raise Stop("stopped")
        return np.arange(8)

    def get_config(self):
        """Leave the rank out: the codecs of all ranks must be the same."""
        return {"kind": self.kind}


@on("short_lived")
def test_what_is_no_exception_is_an_error_on_all_ranks_and_no_hang(rank):
    with attached(network(), gradwire.Codec(sparsify=Stops(rank=rank)), **SEVERAL) as (model, _):
        said = "rank 1 could not encode: Stop: stopped$"
        with pytest.raises(ExchangeError, match=said) as caught:
            train(model, rank, range(4))
        assert caught.value.rank == 1


@on("short_lived")
def test_ctrl_c_between_steps_aborts_no_process(rank):
    """On rank 1, while it waits for the other one to begin an epoch."""

    def go():
        with attached(network(), TOPK) as (model, handle):
            train(model, rank, range(2))
            if rank == 1:
                timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
                timer.start()
                handle.epoch(1)
                timer.join()
            else:
                time.sleep(3.0)
                handle.epoch(1)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises((ExchangeError, KeyboardInterrupt)[rank]):
            go()
    finally:
        signal.signal(signal.SIGINT, handler)


@on("two")
def test_a_thread_may_report_during_training(rank):
    torch.manual_seed(0)
    reports, ended = [], threading.Event()

    def watch():
        while not ended.is_set():
            if handle.report().residual_norm is not None:
                reports.append(handle.metrics())

    module = torch.nn.Sequential(
        torch.nn.Linear(32, 2048), torch.nn.Tanh(), torch.nn.Linear(2048, 16)
    )
    with attached(module, TOPK, **SEVERAL) as (model, handle):
        thread = threading.Thread(target=watch)
        thread.start()
        try:
            train(model, rank, range(20))
        finally:
            ended.set()
            thread.join()
    assert reports
    assert handle.step == 20
    alike(fingerprint(module))


@on("expendable")
def test_a_forked_process_leaves_the_ranks_alone(rank):
    """It is left by an exception, as a loader's worker may be."""
    with attached(network(), TOPK) as (model, handle):
        train(model, rank, range(2))
        pid = os.fork()
        if pid == 0:
            mine = 1
            try:
                with pytest.raises(ExchangeError, match=re.escape("forked after attach()")):
                    handle.epoch(1)
                handle.detach()
                mine = 5
            finally:
                os._exit(mine)
        deadline, ended = time.monotonic() + 60.0, 0
        while not ended and time.monotonic() < deadline:
            time.sleep(0.05)
            ended, status = os.waitpid(pid, os.WNOHANG)
        if not ended:
            os.kill(pid, signal.SIGKILL)
        assert ended
        assert os.waitstatus_to_exitcode(status) == 5
        handle.epoch(1)
        train(model, rank, range(2, 4))
        assert handle.step == 4
        alike(fingerprint(model))


@on("two")
def test_copies_of_a_model_take_codecs_of_their_own(rank):
    with attached(network(), TOPK) as (model, _):
        train(model, rank, range(2))
        for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            train(again, rank, range(2, 3))
            with gradwire.torch.ddp.attach(again, gradwire.topk(ratio=0.1)) as handle:
                train(again, rank, range(3, 5))
                assert handle.step == 2
                assert fingerprint(again) != fingerprint(model)


@on("two")
def test_without_a_network_for_gloo_it_is_said_which_one_to_name(rank):
    model = DistributedDataParallel(network())
    said = "its messages between the ranks go over Gloo, even if frames go over NCCL"
    with (
        mock.patch.dict(os.environ, GLOO_SOCKET_IFNAME="missing0"),
        pytest.raises(ExchangeError, match=said) as caught,
    ):
        gradwire.torch.ddp.attach(model, TOPK)
    assert "name its interface with GLOO_SOCKET_IFNAME" in str(caught.value)
    assert "missing0" in str(caught.value), "what Gloo says of it"
    # Plain DDP goes on, and a later attach() finds its ranks.
    train(model, rank, range(2))
    with gradwire.torch.ddp.attach(model, TOPK) as handle:
        train(model, rank, range(2, 4))
        assert handle.step == 2


@on("two")
def test_gathering_to_different_ranks_is_an_error_at_once(rank):
    to, other = (None, 0) if rank else (0, None)
    said = f"rank {1 - rank} called gathered_state_dict({other}), this rank gathered_state_dict"
    with attached(network(), TOPK) as (model, handle):
        train(model, rank, range(2))
        with pytest.raises(ExchangeError, match=re.escape(f"{said}({to})")):
            handle.gathered_state_dict(to)
