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

from tests.horovod.launcher import HorovodRanks as Ranks
from tests.horovod.launcher import run_script

SHUT_DOWN = "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down."


def test_blobs_may_have_any_length_on_any_rank_in_any_round(ranks: Ranks) -> None:
    rounds = [[5, 0, 3], [3, 4, 0], [0, 0, 0], [0, 20_000, 7], [2, 2, 2], [2, 2, 2], [2, 2, 3]]
    assert all(ranks.run("ground.gather", rounds=[each[: ranks.world_size] for each in rounds]))


def test_names_tell_what_belongs_together_and_not_the_order(ranks: Ranks) -> None:
    assert all(ranks.run("ground.reorder"))


def test_two_threads_may_submit_and_wait(ranks: Ranks) -> None:
    assert ranks.run("ground.thread", rounds=50) == [[]] * ranks.world_size


def test_a_result_can_be_asked_for_without_waiting(two: Ranks) -> None:
    assert all(two.run("ground.polled"))


def test_a_name_in_flight_is_refused_on_its_own_rank(two: Ranks) -> None:
    first, second = two.run("ground.twice")
    assert first.startswith("ValueError: Requested to allreduce, allgather, or broadcast a tensor")
    assert second == ""


def test_tensors_that_do_not_fit_are_an_error_on_every_rank_which_goes_on(two: Ranks) -> None:
    for found in two.run("ground.disagree"):
        assert found["type"].startswith("HorovodInternalError: Mismatched data types: ")
        assert found["dimensions"].startswith("HorovodInternalError: Mismatched ALLGATHER ")
    assert all(two.run("ground.reorder"))


def test_process_sets_gather_among_their_ranks(three: Ranks) -> None:
    outside, *members = three.run("ground.process_sets")
    assert outside["refused"].startswith("ValueError: "), outside
    assert outside["everywhere"]
    for rank, found in enumerate(members):
        assert found["gathered"]
        assert found["everywhere"]
        assert (found["size"], found["rank"]) == (2, rank)


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
