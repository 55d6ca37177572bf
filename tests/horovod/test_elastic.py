"""Residuals go through a change of ranks under Horovod's own elastic driver."""

import itertools
import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.ranks import ROOT
from tests.horovod.elastic_run import PHASES, write_hosts
from tests.horovod.launcher import HOROVODRUN, end, variables

pytestmark = pytest.mark.waits  # for ranks that died

ENTERED = [2, 2, 3, 3, 3, 2, 2, 1]
"""Ranks that there are when each rank begins or goes on: one joins, one leaves, and one dies."""


def run_elastic(folder: Path, limit: float = 600.0) -> str:
    """Run the script in ranks that come and go; return what the driver has said."""
    write_hosts(folder, PHASES[0])
    discover = folder / "discover"
    discover.write_text(f"#!/bin/sh\ncat {folder}/hosts\n")
    discover.chmod(discover.stat().st_mode | stat.S_IXUSR)
    command = [str(HOROVODRUN), "-np", "2", "--min-np", "1", "--max-np", "3", "--gloo"]
    command += ["--network-interfaces", "lo", "--host-discovery-script", str(discover)]
    command += [sys.executable, "-m", "tests.horovod.elastic_run", str(folder)]
    with (folder / "said").open("wb") as said:
        run = subprocess.Popen(
            command,
            cwd=ROOT,
            env=variables(200.0),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            run.wait(limit)
        finally:
            end(run)
    return (folder / "said").read_text(errors="replace")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_residuals_go_through_every_change_of_ranks(tmp_path: Path) -> None:
    said = run_elastic(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    text = said + "\n".join(map(str, lines))
    assert lines[-1]["what"] == "ends", text
    # In the order of time: the ranks of one commit or entry are next to each other.
    assert [each["size"] for each in lines if each["what"] == "enters"] == ENTERED, text
    changes = 0
    for at, (before, after) in enumerate(itertools.pairwise(lines)):
        if after["what"] != "enters" or after["size"] == before["size"]:
            continue
        changes += 1
        for what in ("batch", "step", "print"):
            assert after[what] == before[what], text
        kept = before["total"]
        if after["size"] == 1:  # what the dead rank held is lost
            kept = [each["mine"] for each in lines[: at + 1] if each["host"] == after["host"]][-1]
        assert after["total"] == pytest.approx(kept, rel=1e-4, abs=1e-6), text
        shares = [each["mine"] for each in lines if _same(each, after)]
        assert shares == pytest.approx([after["total"] / after["size"]] * after["size"]), text
    assert changes == 3
    for one in lines:
        assert {each["print"] for each in lines if _same(each, one)} == {one["print"]}, text


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Tell whether two ranks were at the same place."""
    return all(one[what] == other[what] for what in ("what", "batch", "size"))
