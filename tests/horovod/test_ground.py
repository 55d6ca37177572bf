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

import re
from pathlib import Path
from typing import Any

import pytest

from tests.horovod.launcher import run_script

SHUT_DOWN = "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down."


@pytest.mark.full
def test_a_rank_that_is_killed_is_noticed_at_once_and_for_good(killed: dict[str, Any]) -> None:
    for name in ("Horovod's own, waiting", "Horovod's own"):
        module, kind, message, _ = killed["said"][name]
        assert f"{module}.{kind}: {message}".startswith(SHUT_DOWN)
    assert killed["initialized"]


@pytest.mark.full
def test_an_exception_on_one_rank_ends_the_job(tmp_path: Path) -> None:
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
