"""Processes of benches: one that ends is noticed at once, and none stays behind."""

import subprocess
import sys
from contextlib import ExitStack

import pytest

pytest.importorskip("torch", reason="the benches need the extra [torch]")

from benches.harness.link import Loopback
from benches.ranks import ROOT, Rank, together

FORKING = """
import os, sys, time
from pathlib import Path
from benches.scatter.processes import run

def act(rank, size, given):
    # Each has joined all others before one of them fails.
    Path(given, str(rank)).touch()
    while len(os.listdir(given)) < size:
        time.sleep(0.01)
    if rank == size - 1:
        os._exit(7)
    time.sleep(900)

print(run(lambda rank, size, given: [rank, size, given], 2, 5), flush=True)
run(act, 3, sys.argv[1])
"""


@pytest.fixture
def ranks(tmp_path):
    with ExitStack() as stack:
        started = []
        for number in range(3):
            rank = Rank(Loopback(), number, str(tmp_path), "tests.benches.answering", ranks=3)
            stack.callback(rank.close)
            started.append(rank)
        yield started


def test_a_rank_that_ends_is_noticed_while_others_wait(ranks):
    for each in ranks:
        each.tell()
    assert together(ranks) == [{}, {}, {}]
    for each in ranks:
        each.tell(**{"0": "wait", "1": "3"})
    with pytest.raises(RuntimeError, match="rank 1 ended with 3"):
        together(ranks)
    with pytest.raises(RuntimeError, match="rank 1 ended with 3"):
        ranks[1].tell()
    assert ranks[0].process.poll() is None, "it was not waited for"


def test_forked_ranks_return_what_the_first_has_found_and_end_with_the_first_that_fails(tmp_path):
    # In a process of its own: this one has threads, and forks of it might wait for their locks.
    command = [sys.executable, "-c", FORKING, str(tmp_path)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert found.stdout == "[0, 2, 5]\n", found.stderr
    assert found.returncode == 1
    assert "RuntimeError: rank 2 of 3 ended with 7" in found.stderr
    assert "FileNotFoundError" not in found.stderr
