"""Every task trains with every method, and the data of Fashion-MNIST is found or asked for."""

import gzip
import struct

import numpy as np
import pytest
import torch

from benches.accuracy import methods
from benches.accuracy.run import _changes, run
from benches.accuracy.tasks import fashion, fashion_data, text
from benches.accuracy.tasks.clicks import Clicks
from benches.accuracy.tasks.fashion_data import NAMES, MissingDataError
from benches.accuracy.tasks.text import Text
from tests.benches.accuracy.toy import Toy

pytestmark = pytest.mark.full  # trains


def write_idx(path, array, packed):
    data = struct.pack(f">I{array.ndim}I", 0x0800 + array.ndim, *array.shape) + array.tobytes()
    if packed:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(data))
    else:
        path.write_bytes(data)


@pytest.fixture(params=[True, False], ids=["gzip", "plain"])
def folder(request, tmp_path):
    """Fashion-MNIST's four files, with little in them."""
    random = np.random.default_rng(0)
    for name in NAMES:
        rows = 256 if name.startswith("train") else 100
        shape = (rows, 28, 28) if "images" in name else (rows,)
        limit = 256 if "images" in name else 10
        write_idx(tmp_path / name, random.integers(0, limit, shape, np.uint8), request.param)
    return tmp_path


@pytest.mark.parametrize("method", methods.METHODS)
def test_every_method_learns(method):
    rate = 0.1 if methods.METHODS[method].optimizer == "sgd" else 0.01
    curve = run(Toy(64), methods.METHODS[method], rate, steps=60, evaluations=2)
    assert not curve.diverged
    assert [point["step"] for point in curve.points] == [30, 60]
    assert curve.points[-1]["accuracy"] > 0.3  # 0.125 by chance


@pytest.mark.parametrize("ranks", [2, 8])
def test_text_trains(ranks, monkeypatch):
    monkeypatch.setattr(text, "HELD_OUT", 32)
    curve = run(Text(), methods.METHODS["adam(0.01)"], 4e-3, ranks=ranks, steps=4, evaluations=1)
    assert 1 < curve.points[0]["loss"] < 4.6


def test_clicks_train():
    task = Clicks(training_rows=4096, held_out_rows=1024)
    curve = run(task, methods.METHODS["adam(0.01)"], 4e-3, steps=4, evaluations=1)
    assert 0.5 < curve.points[0]["loss"] < 0.75
    assert 0.2 < task.facts()["clicks"] < 0.3


def test_a_warm_up_that_counts_steps_ends_after_them():
    changes = _changes(methods.METHODS["adam(0.01), warm-up"], 640)
    ratios = {step: codec.sparsify.ratio for step, codec in changes.items() if step < 150}
    assert ratios == {0: 0.02, 100: 0.01}


def test_fashion_trains(folder, monkeypatch):
    monkeypatch.setattr(fashion, "GLOBAL_BATCH", 16)
    curve = run(fashion.Fashion(folder), methods.METHODS["dense SGD"], 0.1, steps=3, evaluations=1)
    assert 0 <= curve.points[0]["accuracy"] <= 1


def test_ranks_share_the_global_batch(folder, monkeypatch):
    monkeypatch.setattr(fashion, "GLOBAL_BATCH", 16)
    for task in (Text(), Clicks(2048, 128), fashion.Fashion(folder)):
        for ranks in (2, 8):
            shares = [next(task.batches(rank, ranks, seed=0)) for rank in range(ranks)]
            whole = next(task.batches(0, 1, seed=0))
            for part, complete in zip(zip(*shares, strict=True), whole, strict=True):
                together = torch.stack(part, 1).flatten(0, 1)
                assert torch.equal(together, complete)


def test_a_run_that_diverges_ends(monkeypatch):
    curve = run(Toy(), methods.METHODS["dense SGD"], 1e30, steps=40, evaluations=4)
    assert curve.diverged
    assert curve.points == []


def test_a_folder_without_the_files_is_named(tmp_path):
    with pytest.raises(MissingDataError, match=rf"--data {tmp_path} has no train-images-idx3"):
        fashion_data.folder(tmp_path)
