"""The files for clusters start ranks that find each other: on this machine, without a cluster."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.examples.runs import EXAMPLES

pytestmark = pytest.mark.timeout(900)

COMMANDS = {
    "torchrun": f'exec "{sys.executable}" -m torch.distributed.run "$@"',
    "scontrol": '[ "$*" = "show hostnames node[1-2]" ] && printf "localhost\\nnode2\\n"',
    "srun": '[ "$1" = --cpus-per-task=1 ] || exit; shift; "$@" & first=$!; "$@" && wait "$first"',
}
"""What the files call. `srun` starts its command on both nodes."""


def run(folder: Path, script: str, variables: Mapping[str, object]) -> "subprocess.Popen[str]":
    """Start a shell script in a folder with the example that it trains and the commands."""
    shutil.copy(EXAMPLES / "torchrun_elastic.py", folder)
    for name, text in COMMANDS.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    return subprocess.Popen(
        ["bash", "-c", script],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{folder}:{os.environ['PATH']}",
            "GLOO_SOCKET_IFNAME": "lo",
            **{name: str(value) for name, value in variables.items()},
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def free_port(first: int, last: int) -> int:
    """Return a port that nobody uses now."""
    for port in range(first + os.getpid() % (last - first), last):
        with socket.socket() as tried:
            if tried.connect_ex(("localhost", port)):
                return port
    raise AssertionError("no port is free")


def manifest() -> dict[str, Any]:
    """Return the objects of the manifest by their kinds."""
    yaml = pytest.importorskip("yaml", reason="this test reads YAML")
    text = (EXAMPLES / "kubernetes.yaml").read_text("utf-8")
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


@pytest.mark.full
def test_the_script_for_slurm_trains_on_two_nodes(tmp_path: Path) -> None:
    script = (EXAMPLES / "slurm.sbatch").read_text("utf-8").replace("run 200", "run 10")
    job = {
        "SLURM_JOB_ID": free_port(20000, 30000),
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_NNODES": 2,
        "SLURM_CPUS_PER_TASK": 1,
    }
    process = run(tmp_path, script, job)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 0, said
    assert {f"rank {rank} of 2: steps 0 to 10" for rank in range(2)} <= set(said.splitlines())
    assert (tmp_path / "run" / "000010-of-2" / ".metadata").exists()


@pytest.mark.full
def test_the_pods_of_the_job_for_kubernetes_train_together(tmp_path: Path) -> None:
    (container,) = manifest()["Job"]["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["sh", "-c"]
    (script,) = container["args"]
    for old, new in {
        "--nnodes=4": "--nnodes=2",
        "train-0.train": "localhost",
        "29500": str(free_port(20000, 30000)),
        "/checkpoints 200": "run 10",
    }.items():
        assert script.count(old) == 1
        script = script.replace(old, new)
    pods = [
        run(tmp_path, script, {"JOB_COMPLETION_INDEX": index, "OMP_NUM_THREADS": 1})
        for index in range(2)
    ]
    for rank, pod in enumerate(pods):
        said, _ = pod.communicate(timeout=600)
        assert pod.returncode == 0, said
        assert f"rank {rank} of 2: steps 0 to 10" in said


def test_the_service_for_kubernetes_names_the_pods_of_the_job() -> None:
    service, job = manifest()["Service"], manifest()["Job"]
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert pod["subdomain"] == service["metadata"]["name"]
    name = f"{job['metadata']['name']}-0.{pod['subdomain']}"
    (container,) = pod["containers"]
    assert f"--master-addr={name} " in container["args"][0]
    assert f"--nnodes={spec['completions']} " in container["args"][0]
    assert spec["completions"] == spec["parallelism"]
    (mount,) = container["volumeMounts"]
    assert mount["mountPath"] in container["args"][0]
    assert mount["name"] in {each["name"] for each in pod["volumes"]}
