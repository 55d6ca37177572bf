"""``make horovod-demo``: ranks of real `horovodrun`, over a real link."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benches.harness.processes import ROOT
from tests.benches.harness.test_link import needs_namespaces

pytestmark = pytest.mark.timeout(900)

for needed in ("sklearn", "rich", "matplotlib"):
    pytest.importorskip(needed, reason="the demo needs the layer demo")

psutil = pytest.importorskip("psutil", reason="the layer horovod has psutil")

DEMO = [sys.executable, "-m", "benches.demo", "--horovod", "--task", "digits"]


@pytest.mark.full
@needs_namespaces
def test_it_trains_over_a_shaped_link_with_horovodrun(tmp_path: Path) -> None:
    given = ["--steps", "8", "--bandwidth", "200mbit", "--codec", "topk"]
    done = subprocess.run(
        [*DEMO, *given, "--out", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Ranks: started by horovodrun." in done.stdout
    assert "vs fp16" in done.stdout
    assert "all ranks ended with bit-identical models" in done.stdout
    figures = json.loads((tmp_path / "demo.json").read_text())
    assert figures["versions"]["horovod"] == "0.28.1"
    assert figures["link"]["shaped"]
    runs = {run["method"]: run for run in figures["runs"]}
    assert list(runs) == ["none", "fp16", "topk"]
    for run in runs.values():
        assert run["replicas_identical"]
        assert len(run["step_seconds"]) == 8
        assert run["curve"][-1]["loss"] < run["curve"][0]["loss"]
        assert run["training_loss"][0] == runs["none"]["training_loss"][0]
        # Horovod's own messages come on top of the payload, and that is all that travels here.
        assert run["bytes_per_step"] <= run["wire_bytes_per_step"]
        assert run["wire_bytes_per_step"] < 1.2 * run["bytes_per_step"] + 200_000
    assert runs["fp16"]["wire_bytes_per_step"] < 0.7 * runs["none"]["wire_bytes_per_step"]
    assert runs["topk"]["bytes_per_step"] < runs["fp16"]["bytes_per_step"] / 3


@pytest.mark.full
def test_killed_in_the_middle_it_leaves_no_process_behind(tmp_path: Path) -> None:
    command = [*DEMO, "--loopback", "--steps", "100000", "--codec", "topk", "--out", str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "compute only:" in line:
                break
        below = psutil.Process(demo.pid).children(recursive=True)
        demo.send_signal(signal.SIGKILL)
    assert len(below) > 3  # horovodrun, two ranks, and what is between them
    _, alive = psutil.wait_procs(below, timeout=60)
    assert not alive
    assert demo.returncode == -signal.SIGKILL
