"""What the integration relies on in Horovod 0.28.1 itself, as it was found by running it.

- Blobs gathered under one name may have another length on each rank and in each round, and none at
  all: a cached response of another length is renegotiated.
- What counts is the name: tensors may be submitted in another order on each rank, and from several
  threads. A name that is in flight is refused with ``ValueError``, on that rank alone.
- Another type or number of dimensions is a ``HorovodInternalError`` on every rank, which can go
  on. Another operation under the same name hangs.
- A rank that is killed, raises, or calls ``shutdown`` is a ``HorovodInternalError`` on the others
  at once, and from then on in each call: there is no way back but `horovodrun`, or a reset by
  Horovod's elastic mode. `horovodrun` ends the other ranks, too, when one has ended badly.
- While it shuts down, it answers what is in progress under a lock, and frees tensors, which takes
  the GIL; to start something takes that lock with the GIL held. Both then wait for ever.
- A rank that stops taking part, but lives, is waited for without end; Horovod only warns after a
  minute. ``HOROVOD_GLOO_TIMEOUT_SECONDS`` is about the transport, not about that.
- ``synchronize`` spins, and takes the GIL each time around; ``poll`` does not wait.
"""

import os
import re
import signal
import time

import pytest
import torch

import gradwire
from tests.distributed.ranks import LazyModule
from tests.distributed.scenarios.common import reaches
from tests.horovod.launcher import HorovodRanks, run_script

parts = LazyModule("tests.horovod.run")
SPARSE = gradwire.topk(ratio=0.05)
SHUT_DOWN = "Horovod has been shut down."


def lose(rank, folder):
    """Rank 1 is killed while the other one waits; return what every call says from then on."""
    from horovod.common.exceptions import HorovodInternalError

    gh, hvd, run = parts.gh, parts.hvd, parts.Run
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # horovodrun ends the others, too
    names = ("epoch", "discard", "paused", "gathered", "merged", "load", "stopped", "plain")
    runs = {name: run(SPARSE).train(rank, range(1)) for name in names}
    runs["steps"] = run(gradwire.adam(ratio=0.05), torch.optim.AdamW).train(rank, range(1))
    ready = folder / "ready"
    if rank == 1:
        assert reaches(ready.exists, 120.0)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    # So many that Horovod still answers them when the first one has failed.
    raw, *_ = [hvd.allgather_async(torch.zeros(4), name=f"after {i}") for i in range(2000)]
    ready.touch()

    def plainly():
        runs["plain"].handle.detach()
        runs["plain"].train(rank, range(1, 2))

    def pause():
        with runs["paused"].handle.paused():
            pass

    calls = {
        "step, waiting": lambda: runs["stopped"].train(rank, range(1, 2)),
        "Horovod's own, waiting": lambda: hvd.synchronize(raw),
        "Horovod's own": lambda: hvd.allgather(torch.zeros(4), name="later"),
        "step": lambda: runs["steps"].train(rank, range(1, 2)),
        "step again": lambda: runs["stopped"].train(rank, range(2, 3)),
        "step, detached": plainly,
        "epoch": lambda: runs["epoch"].handle.epoch(1),
        "epoch again": lambda: runs["epoch"].handle.epoch(1),
        "discard": runs["discard"].handle.discard,
        "paused": pause,
        "gathered_state_dict": runs["gathered"].handle.gathered_state_dict,
        "merged_state_dict": runs["merged"].handle.merged_state_dict,
        "load_state_dict": lambda: runs["load"].handle.load_state_dict(None, policy="drop"),
        "DistributedOptimizer": lambda: run(SPARSE),
        "commit": lambda: gh.ElasticState(optimizer=runs["merged"].optimizer).commit(),
        "sync": lambda: gh.ElasticState(optimizer=runs["merged"].optimizer).sync(),
        "broadcast": lambda: gh.broadcast_parameters(runs["load"].model.state_dict(), 0),
    }
    said = {}
    for name, call in calls.items():
        try:
            call()
        except Exception as error:
            kind, recognized = type(error), isinstance(error, HorovodInternalError)
            said[name] = [kind.__module__, kind.__name__, str(error), recognized]
        else:
            said[name] = None
    for each in runs.values():
        each.handle.detach()
    assert hvd.is_initialized()
    return said


def test_after_a_rank_was_killed_every_call_is_an_error_that_elastic_knows(launcher, tmp_path):
    ranks = HorovodRanks(launcher, 2)
    try:
        (kind, said), other = ranks.try_run(lose, folder=tmp_path)
    finally:
        ranks.stop()
    assert other[0] == "died"
    assert kind == "returned", said or ranks.log(0)
    for name, error in said.items():
        assert error is not None, f"{name} raised nothing"
        module, kind, message, recognized = error
        assert recognized, (name, error)
        if module != "horovod.common.exceptions":  # what Horovod itself says
            assert (kind, "another rank" in message) == ("LostRankError", True), (name, error)
    own = {name for name, error in said.items() if error[1] == "LostRankError"}
    theirs = {"Horovod's own, waiting", "Horovod's own"}
    assert said.keys() - own == theirs | {"commit", "broadcast"}
    # At once, and for good.
    assert all(said[name][2].startswith(SHUT_DOWN) for name in theirs)


@pytest.mark.full
def test_an_exception_on_one_rank_ends_the_job(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import atexit, pathlib, time\n"
        "def tell(what):\n"
        "    rank == 1 or pathlib.Path(__file__).with_name(what).touch()\n"
        "def wait(what):\n"
        "    while rank == 1 and not pathlib.Path(__file__).with_name(what).exists():\n"
        "        time.sleep(0.05)\n"
        "atexit.register(lambda: (tell('ended'), wait('ended')))  # horovodrun ends the other\n"
        "import gradwire.torch, horovod.torch as hvd, torch\n"
        "hvd.init()\n"
        "rank = hvd.rank()\n"
        "weight = torch.nn.Parameter(torch.ones(64, 64))\n"
        "optimizer = gradwire.torch.horovod.DistributedOptimizer(\n"
        "    torch.optim.SGD([weight], lr=0.1), codec=gradwire.topk(ratio=0.1)\n"
        ")\n"
        "for step in range(3):\n"
        "    if (rank, step) == (1, 2):\n"
        "        wait('went on')\n"
        "        raise ArithmeticError('of rank 1')\n"
        "    optimizer.zero_grad()\n"
        "    weight.square().sum().backward()\n"
        "    optimizer.step()\n"
        "    total = hvd.allgather(torch.ones(rank), name='a').numel()\n"
        "    print('step', step, total, flush=True)\n"
        "    if step == 1:\n"
        "        tell('went on')\n"
    )
    finished = run_script(tmp_path, 2, script)
    assert finished.status == 1, finished
    assert "step 1 1" in finished.ranks[0]
    assert "ArithmeticError: of rank 1" in finished.ranks[1]
    assert "step 2" not in finished.ranks[0], finished
    assert re.search("LostRankError: .*another rank", finished.ranks[0]), finished
    assert "Horovod has been shut down" in finished.ranks[0], finished
    assert "exited with non-zero status" in finished.launcher
