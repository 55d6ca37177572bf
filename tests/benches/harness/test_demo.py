"""``make demo`` from end to end: real processes, real training, a real link."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benches.harness.processes import ROOT
from tests.benches.harness.test_link import needs_namespaces

for needed in ("torch", "sklearn", "matplotlib"):
    pytest.importorskip(needed, reason="the demo needs the layer demo")

DEMO = [sys.executable, "-m", "benches.demo"]


@pytest.mark.full
@needs_namespaces
def test_over_a_shaped_link_it_trains_counts_bytes_and_prints_a_table(tmp_path):
    given = ["--task", "digits", "--steps", "8", "--bandwidth", "200mbit", "--out", str(tmp_path)]
    done = subprocess.run(
        [*DEMO, *given], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "2 ranks in network namespaces of their own" in done.stdout
    assert "digits, 200 Mbit/s: convolutional network, handwritten digits" in done.stdout
    assert "all ranks ended with bit-identical models" in done.stdout
    figures = json.loads((tmp_path / "demo.json").read_text())
    runs = {run["method"]: run for run in figures["runs"]}
    assert list(runs) == ["none", "bf16", "topk", "sidco", "adam"]
    for run in runs.values():
        assert run["replicas_identical"]
        assert len(run["step_seconds"]) == run["steps"] == run["curve"][-1]["step"] == 8
        assert run["curve"][-1]["seconds"] == pytest.approx(sum(run["step_seconds"]))
        # All start from the same weights and see the same data first.
        assert run["curve"][0]["loss"] == runs["none"]["curve"][0]["loss"]
        assert run["training_loss"][0] == runs["none"]["training_loss"][0]
        assert run["curve"][-1]["loss"] < run["curve"][0]["loss"]
        # Payload, headers, and the barriers around evaluations; nothing else travels here.
        assert run["bytes_per_step"] <= run["wire_bytes_per_step"]
        assert run["wire_bytes_per_step"] < 1.2 * run["bytes_per_step"] + 20_000
    assert runs["bf16"]["bytes_per_step"] == runs["none"]["bytes_per_step"] / 2
    assert runs["none"]["bytes_per_step"] == 4 * runs["none"]["parameters"]
    for method in ("topk", "sidco", "adam"):
        assert runs[method]["bytes_per_step"] < runs["bf16"]["bytes_per_step"] / 3
        assert runs[method]["achieved"] == pytest.approx(1.0, abs=0.3)
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def children_of(pid: int) -> set[int]:
    """Return the living processes whose parent is that one."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.add(int(status.parent.name))
    return found


def is_rank(pid: int) -> bool:
    """Return whether a process is a rank, and not the holder of a namespace."""
    try:
        return b"benches.harness.rank_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it reads /proc")
@pytest.mark.parametrize(
    ("how", "last_line"),
    [(signal.SIGTERM, "compute only:"), (signal.SIGKILL, "Link:")],
    ids=["terminated in training", "killed while it starts"],
)
def test_stopped_in_the_middle_it_leaves_no_process_behind(tmp_path, how, last_line):
    command = [*DEMO, "--task", "digits", "--steps", "100000", "--out", str(tmp_path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if last_line in line:
                break
        while sum(map(is_rank, children := children_of(demo.pid))) < 2:
            assert demo.poll() is None, "the demo has ended"
            time.sleep(0.01)
        demo.send_signal(how)
        _, complaint = demo.communicate(timeout=60)
    end = time.monotonic() + 30
    while any(Path(f"/proc/{pid}/ns/net").exists() for pid in children):
        assert time.monotonic() < end, "ranks or holders are still there"
        time.sleep(0.05)
    if how == signal.SIGTERM:
        assert demo.returncode == 130
        assert complaint == "make demo: interrupted; processes and links were removed\n"
