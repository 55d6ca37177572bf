"""``gradwire follow`` keeps a file at the newest version."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from gradwire import delta, weights
from gradwire.cli import main


def publish(folder, *steps):
    with delta.Publisher(folder) as publisher:
        for step in steps:
            publisher.push(step, {"w": np.full(300, step, np.float32), "n": np.arange(3)})


def test_once_writes_the_newest_version(tmp_path, capsys):
    folder, file = str(tmp_path / "run"), tmp_path / "model.safetensors"
    publish(folder, 3, 4)
    assert main(["follow", folder, str(file), "--once"]) == 0
    assert capsys.readouterr().out == f"{file}: step 4\n"
    with weights.open(file) as written:
        assert written.metadata == {"step": "4"}
        assert (written["w"] == 4).all()
        assert written["n"].tolist() == [0, 1, 2]


def test_it_follows_until_it_is_stopped(tmp_path):
    folder, file = tmp_path / "run", tmp_path / "model.safetensors"
    command = [sys.executable, "-m", "gradwire", "follow", str(folder), str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for step in range(2):
            publish(folder, step)
            assert process.stdout.readline() == f"{file}: step {step}\n"
            with weights.open(file) as written:
                assert (written["w"] == step).all()
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130


@pytest.mark.parametrize("kind", ["nothing", "damaged", "target"])
def test_an_error_is_one_line(tmp_path, kind, capsys):
    folder, file = tmp_path / "run", tmp_path / "model.safetensors"
    if kind != "nothing":
        publish(folder, 1)
    if kind == "damaged":
        (folder / "part-0.json").write_text("{")
    if kind == "target":
        file = tmp_path / "none" / "model.safetensors"
    assert main(["follow", str(folder), str(file), "--once", "--timeout", "0.1"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("gradwire follow: ")
    assert error.count("\n") == 1
    assert not file.exists()
