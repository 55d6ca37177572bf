"""The examples that move frames themselves: real processes and sockets, resumed bit for bit."""

import importlib.util
import os
import pickle
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import gradwire
from gradwire.memory import NoMemory

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(script: Path, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(script), str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        # Products of matrices then have the same bits in every run.
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def changed(name: str, folder: Path, before: str, after: str) -> Path:
    """A copy of an example with another number in it."""
    source = (EXAMPLES / name).read_text("utf-8")
    assert source.count(before) == 1
    copy = folder / f"{len(list(folder.iterdir()))}-{name}"
    copy.write_text(source.replace(before, after), "utf-8")
    return copy


def residuals(*states: gradwire.State) -> list[bytes]:
    return [np.asarray(state.residual).tobytes() for state in states]


@pytest.mark.full
def test_federated_averaging_learns_without_torch_and_goes_on_where_it_was(tmp_path):
    script = EXAMPLES / "federated_averaging.py"
    assert "round 40: " in run(script, tmp_path / "halves")
    said = run(script, tmp_path / "halves")
    assert "round 80: " in said
    share, smaller = said.partition("round 80: ")[2].split("% right, ")
    assert int(share) > 80
    assert int(smaller.split()[0]) > 10
    whole = changed(script.name, tmp_path, "= 256, 10, 10, 6, 40", "= 256, 10, 10, 6, 80")
    whole.write_text(whole.read_text() + "assert 'torch' not in sys.modules\n")
    assert run(whole, tmp_path / "whole").startswith("round 80: ")
    found = []
    for folder in ("halves", "whole"):
        weights, number, states = pickle.loads((tmp_path / folder / "federated.pkl").read_bytes())
        steps = [state.step for state in states]
        found.append((weights.tobytes(), number, steps, residuals(*states)))
        assert sum(steps) == 6 * 80
        assert len(set(steps)) > 1, "some were absent more often than others"
    assert found[0] == found[1]


@pytest.mark.full
def test_the_parameter_server_learns_and_goes_on_where_it_was(tmp_path):
    name = "parameter_server.py"
    half = changed(name, tmp_path, "np.float32(0.03), 100", "np.float32(0.03), 60")
    whole = changed(name, tmp_path, "np.float32(0.03), 100", "np.float32(0.03), 120")
    first, second = run(half, tmp_path / "halves"), run(half, tmp_path / "halves")
    assert first.count("step 60, loss ") == second.count("step 120, loss ") == 3
    assert loss(second) < loss(first) / 10
    run(whole, tmp_path / "whole")
    found = []
    for folder in (tmp_path / "halves", tmp_path / "whole"):
        weights, state = pickle.loads((folder / "server.pkl").read_bytes())
        workers = [pickle.loads((folder / f"worker{i}.pkl").read_bytes()) for i in range(3)]
        assert {each.step for each in workers} == {120}
        found.append((weights.tobytes(), residuals(state, *workers)))
    assert found[0] == found[1]


def loss(said: str) -> float:
    # Unbuffered, the lines of several processes may run into each other.
    return max(map(float, re.findall(r"loss ([\d.]+)", said)))


def flipped(frame: bytes) -> bytes:
    return frame[:-5] + bytes([frame[-5] ^ 1]) + frame[-4:]


def other() -> bytes:
    """A frame of another tensor, with its length."""
    frame = bytes(gradwire.topk(k=1, memory=NoMemory()).encode(np.ones(2000, np.float32)))
    return len(frame).to_bytes(4, "little") + frame


HOSTILE = {
    "flipped": (lambda frame: len(frame).to_bytes(4, "little") + flipped(frame), "CorruptFrame"),
    "endless": (lambda frame: b"\xff\xff\xff\xff" + frame, "4294967295 bytes announced"),
    "cut off": (lambda frame: len(frame).to_bytes(4, "little") + frame[:-9], "TruncatedFrame"),
    "other": (lambda frame: other(), "2000 elements exceeds the limit of 1000"),
    "silent": (lambda frame: b"", "TruncatedFrame"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_worker_is_left_out_and_the_others_go_on(tmp_path, monkeypatch, capsys, kind):
    made = importlib.util.spec_from_file_location("served", EXAMPLES / "parameter_server.py")
    assert made is not None
    assert made.loader is not None
    example = importlib.util.module_from_spec(made)
    made.loader.exec_module(example)
    monkeypatch.setattr(example, "STEPS", 5)
    forge, said = HOSTILE[kind]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads = [
            threading.Thread(
                target=example.work, args=(listener.getsockname(), rank, tmp_path / str(rank))
            )
            for rank in range(2)
        ]
        threads.append(
            threading.Thread(target=example.serve, args=(listener, 3, tmp_path / "server"))
        )
        for thread in threads:
            thread.start()
        with socket.create_connection(listener.getsockname()) as hostile:
            hostile.sendall(b"\x02")
            link = hostile.makefile("rb")
            state = example.CODEC.init_state(example.NUMEL)
            gradwire.decode(example.receive(link), max_numel=example.NUMEL)
            frame = bytes(example.CODEC.encode(np.ones(example.NUMEL, np.float32), state))
            hostile.sendall(forge(frame))
            hostile.shutdown(socket.SHUT_WR)
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    out = capsys.readouterr().out
    assert out.count("without worker 2: ") == 1
    assert said in out
    assert out.count("step 5, loss") == 2
    weights, _ = pickle.loads((tmp_path / "server").read_bytes())
    assert np.isfinite(weights).all()
