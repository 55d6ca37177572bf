"""Every task trains with every method, and the data of Fashion-MNIST is found or asked for."""

import gzip
import struct

import numpy as np
import pytest
import torch

from benches.accuracy import methods
from benches.accuracy.flat import Flat
from benches.accuracy.plan import SECTIONS
from benches.accuracy.run import evaluate, run
from benches.accuracy.tasks import fashion, fashion_data, text
from benches.accuracy.tasks.clicks import Clicks, area
from benches.accuracy.tasks.control import CartPoles, Control
from benches.accuracy.tasks.fashion_data import NAMES, MissingDataError
from benches.accuracy.tasks.noise import Noise
from benches.accuracy.tasks.text import Text
from tests.benches.accuracy.toy import Toy


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


def test_every_method_of_a_section_is_known():
    for section in SECTIONS.values():
        for method, _ in section.methods:
            assert method in methods.METHODS


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


def test_noise_is_predicted_the_better_the_longer_it_trains():
    task = Noise(32)
    curve = run(task, methods.METHODS["adam(0.01)"], 4e-3, steps=12, evaluations=2)
    first, last = curve.points
    assert last["loss"] < first["loss"] < 1.2
    assert last["explained"] == 1 - last["loss"]
    assert evaluate(task, task.model(0)) == evaluate(task, task.model(0))


def test_poles_stay_up_longer_by_a_policy_that_was_trained():
    task, method = Control(), methods.METHODS["dense AdamW"]
    before = evaluate(task, task.model(0))
    curve = run(task, method, 2e-3, steps=160, evaluations=1)
    assert 0 < before["return"] < curve.points[0]["return"] / 2
    assert curve.points[0]["return"] <= 1


def test_ranks_act_in_environments_of_their_own():
    task, model = Control(), Control().model(0)
    first, second = (next(task.batches(rank, 2, seed=0)) for rank in range(2))
    assert task.loss(model, first) != task.loss(model, second)
    again = next(task.batches(0, 2, seed=0))
    assert task.loss(model, again) == task.loss(model, next(task.batches(0, 2, seed=0)))
    with pytest.raises(ValueError, match="16 environments do not divide among 3 ranks"):
        next(task.batches(0, 3, seed=0))


def test_a_pole_falls_if_nobody_balances_it_and_a_balanced_one_ends_after_the_longest_time():
    world = CartPoles(2, torch.Generator().manual_seed(0))
    steps = 1
    while not world.step(torch.ones(2))[0].any():
        steps += 1
    assert 5 < steps < 15  # as the published task, pushed one way
    world = CartPoles(1, torch.Generator().manual_seed(0))
    for _ in range(499):
        # By angle and turning, with the place and speed of the cart: a controller that is known.
        push = (world.states @ torch.tensor([0.1, 0.5, 3.0, 1.0]) > 0).long()
        fell, ended = world.step(push)
        assert not fell
        assert not ended
    assert world.step(push)[1]


def test_a_warm_up_that_counts_steps_ends_after_them():
    flat = Flat(Toy().model(0))
    rule = methods.METHODS["adam(0.01), warm-up"].rule(flat, 1, 640)
    assert {step: codec.sparsify.ratio for step, codec in rule._changes.items() if step < 150} == {
        0: 0.02, 100: 0.01
    }  # fmt: skip


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


def test_the_area_is_how_often_a_click_has_the_larger_logit():
    assert area(torch.tensor([0.1, 0.2, 0.9, 0.8]), torch.tensor([0.0, 0.0, 1.0, 1.0])) == 1.0
    assert area(torch.tensor([0.9, 0.2, 0.1, 0.8]), torch.tensor([0.0, 1.0, 0.0, 1.0])) == 0.5


def test_a_run_that_diverges_ends(monkeypatch):
    curve = run(Toy(), methods.METHODS["dense SGD"], 1e30, steps=40, evaluations=4)
    assert curve.diverged
    assert curve.points == []


def test_a_folder_without_the_files_is_named(tmp_path):
    with pytest.raises(MissingDataError, match=rf"--data {tmp_path} has no train-images-idx3"):
        fashion_data.folder(tmp_path)


def test_without_apt_the_message_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(fashion_data, "INSTALLED", tmp_path / "none")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDataError, match=r"no apt-get.*dataset-fashion-mnist.*--data DIR"):
        fashion_data.folder()


def test_a_download_that_fails_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(fashion_data, "INSTALLED", tmp_path / "none")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name, script in (("apt-get", "echo E: no such package >&2; exit 100"), ("dpkg-deb", "")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(MissingDataError, match=r"could not download it .E: no such package"):
        fashion_data.folder()
    assert not list((tmp_path / "gradwire" / "fashion-mnist").iterdir())
