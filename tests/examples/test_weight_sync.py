"""The example of reinforcement learning: two servers follow each version of a policy."""

import re
import subprocess
import sys

import pytest

from gradwire import delta
from tests.examples.runs import EXAMPLES


@pytest.mark.full
def test_servers_follow_the_policy_while_it_learns(tmp_path):
    command = [sys.executable, str(EXAMPLES / "rl_weight_sync.py"), str(tmp_path), "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = re.findall(
        r"^version (\d+): ([\d.]+)% of 12.8 M weights changed, (\d+) kB \(.* bits each; "
        r"whole: 25.5 MB\), written in \d+ ms, applied by 2 followers in \d+ ms$",
        done.stdout,
        re.MULTILINE,
    )
    assert [int(number) for number, _, _ in lines] == [1, 2, 3]
    assert all(0 < float(share) < 10 and int(size) < 1000 for _, share, size in lines)
    follower = delta.Follower(tmp_path)
    assert follower.pull(follower.blank()) == 3
