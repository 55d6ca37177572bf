"""Accelerate, unmodified: its loop, its checkpoints, its scaler, its accumulation."""

import copy
import os
import warnings
from importlib.util import find_spec

import numpy as np
import pytest
import torch

import gradwire
import gradwire.torch.ddp
from gradwire.torch.ddp import PairingWarning, UpdateError
from tests.distributed.ranks import LazyModule, alike, on
from tests.distributed.scenarios.common import fingerprint, network, residuals
from tests.distributed.scripted import CODEC, ratios, scripted

if find_spec("accelerate") is None:
    pytest.skip("these tests need Accelerate", allow_module_level=True)

parts = LazyModule("tests.trainers.hugging_parts")
UPDATES = 6
ADAM = gradwire.adam(ratio=0.02)

CASES = {
    "AdamW": {},
    "AdamW, accumulated, bf16": {"accumulate": 2, "precision": "bf16"},
    "AdamW, clipped": {"accumulate": 2, "clip": 0.05},
    "topk, scaler": {"codec": gradwire.topk(ratio=0.02), "scaler": True, "sgd": True},
}


@pytest.mark.parametrize("case", CASES)
@on("hugging_two")
def test_a_saved_state_resumes_bit_for_bit(rank, size, case, tmp_path):
    options = {"codec": None, **CASES[case]}
    clip = options.pop("clip", None)
    whole = parts.Run(rank, size, **options)
    whole.train(0, UPDATES, clip=clip)
    expected = whole.end()
    assert any(any(each) for each in expected[1].values())

    half = parts.Run(rank, size, **options)
    half.train(0, UPDATES // 2, clip=clip)
    half.accelerator.save_state(tmp_path)
    half.end()

    rest = parts.Run(rank, size, seed=99, **options)
    rest.accelerator.load_state(tmp_path)
    assert rest.handle.step == UPDATES // 2
    rest.train(UPDATES // 2, UPDATES, clip=clip)
    found = rest.end()
    assert found == expected
    alike(found[0])


EVERYTHING = gradwire.topk(ratio=1.0)
BF16 = {"sgd": True, "accumulate": 2, "precision": "bf16"}
EQUAL = {
    "everything sent": ({"codec": False, "sgd": True}, {"codec": EVERYTHING, "sgd": True}),
    "bf16": ({"codec": False, **BF16}, {"codec": EVERYTHING, **BF16}),
    # The scale is a power of two.
    "scaler": ({"codec": None, "fused": True}, {"codec": None, "fused": True, "scaler": True}),
}


@pytest.mark.parametrize("case", EQUAL)
@on("hugging_two")
def test_what_should_make_no_difference_makes_none(rank, size, case):
    prints = []
    for options in EQUAL[case]:
        run = parts.Run(rank, size, **options)
        run.train(0, UPDATES)
        prints.append(run.end()[0])
    assert alike(prints[0]) == prints[1]


@on("hugging_two")
def test_a_step_with_an_infinite_gradient_on_one_rank_is_skipped_on_all(rank, size):
    codec = gradwire.topk(ratio=0.05)
    run = parts.Run(rank, size, codec, scaler=True, sgd=True, accumulate=2)
    assert run.train(0, UPDATES, bad=5) == [False, False, True, False, False, False]
    assert run.accelerator.scaler.get_scale() == 128.0
    assert run.handle.step == 5
    alike(run.end()[0])


def save(rank, size, tmp_path, everywhere, detach):
    """Save after 3 updates; return this rank's residuals."""
    options = parts.ProjectConfiguration(str(tmp_path), save_on_each_node=everywhere)
    run = parts.Run(rank, size, ADAM, project_config=options)
    run.train(0, 3)
    left = residuals(run.handle)
    if detach:
        run.handle.detach()
    run.accelerator.save_state(str(tmp_path))
    run.handle.detach()
    return left


def load(rank, size, tmp_path, nodes):
    """Load what another number of ranks saved; return this rank's residuals, and train on."""
    run = parts.Run(rank, size, ADAM, seed=99, attached={"hierarchy": "node"} if nodes else {})
    assert run.handle.ranks_per_node == (size if nodes else 1)
    run.accelerator.load_state(str(tmp_path))
    left = residuals(run.handle)
    run.train(3, 4)
    assert run.handle.step == 4
    alike(run.end()[0])
    return left


@pytest.mark.parametrize("everywhere", [False, True], ids=["main process", "each node"])
@pytest.mark.parametrize("detach", [False, True], ids=["attached", "detached"])
def test_three_processes_continue_with_the_residuals_of_two(
    hugging_two, hugging_three, tmp_path, everywhere, detach
):
    old = hugging_two.run(save, tmp_path=tmp_path, everywhere=everywhere, detach=detach)
    new = hugging_three.run(load, tmp_path=tmp_path, nodes=detach)
    for name in old[0]:
        total = sum(each[name].astype(np.float64) for each in old)
        assert total.any()
        if detach:  # one node of three ranks, each with a share of what the node has to send
            total = np.concatenate([left[name] for left in new]) * 3 - total
            np.testing.assert_allclose(total, 0.0, atol=1e-7)
            continue
        for left in new:
            np.testing.assert_array_equal(left[name], (total / 3).astype(np.float32))


@on("hugging_two")
def test_a_model_that_is_attached_again_is_saved_once(rank, size, tmp_path):
    run = parts.Run(rank, size, ADAM)
    run.handle.detach()
    run.attach(gradwire.adam(ratio=0.04))
    copied = copy.deepcopy(run.model)  # as for an average of its weights
    assert copied.module is not run.model.module
    run.train(0, 2)
    run.accelerator.save_state(str(tmp_path))
    run.train(2, 3)
    run.accelerator.load_state(str(tmp_path))
    assert run.handle.step == 2
    run.end()
    custom = [each.name for each in tmp_path.glob("custom_checkpoint_*")]
    assert custom == ["custom_checkpoint_0.pkl"]


@on("hugging_two")
def test_mistakes_are_told(rank, size, tmp_path):
    run = parts.Run(rank, size, ADAM)
    run.train(0, 2)
    run.accelerator.save_state(str(tmp_path / "two"))
    run.end()
    run = parts.Run(rank, size, False)
    with pytest.raises(TypeError, match=r"attach\(\) takes a model wrapped in"):
        parts.attach(run.accelerator, network(), ADAM, optimizer=run.optimizer)
    with pytest.raises(TypeError, match=r"pass the optimizer inside it, \.optimizer"):
        gradwire.torch.ddp.attach(run.model, ADAM, optimizer=run.optimizer)
    plugin = parts.GradientAccumulationPlugin(num_steps=2, sync_each_batch=True)
    run = parts.Run(rank, size, ADAM, gradient_accumulation_plugin=plugin, accumulate=None)
    with pytest.raises(UpdateError):
        run.train(0, 2)
    run.end()
    saved = dict(os.environ)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        del os.environ[name]
    parts.AcceleratorState._reset_state(reset_partial_state=True)
    alone, given = parts.Accelerator(cpu=True), network()
    optimizer = torch.optim.AdamW(given.parameters(), lr=0.01)
    model, *_ = parts.prepared(alone, given, optimizer, UPDATES)
    with pytest.warns(RuntimeWarning, match="there is only one process"):
        assert parts.attach(alone, model, ADAM) is None
    with pytest.warns(RuntimeWarning, match="residuals of 2 ranks are not loaded by one process"):
        alone.load_state(str(tmp_path / "two"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        alone.save_state(str(tmp_path / f"one{rank}"))
    os.environ |= saved
    run = parts.Run(rank, size, ADAM)
    match = "the checkpoint was saved by one process: residuals start from zero"
    with pytest.warns(RuntimeWarning, match=match):
        run.accelerator.load_state(str(tmp_path / "one0"))
    run.end()


@on("hugging_two")
def test_a_loaded_state_goes_on_with_what_auto_has_chosen(rank, size, tmp_path):
    """What is decided is scripted."""
    with scripted(CODEC):
        run = parts.Run(rank, size, "auto", attached={"min_ratio": 0.05})
        for _ in range(2):  # DDP makes its buckets anew, then looks begin
            run.train(0, UPDATES)
        run.accelerator.save_state(str(tmp_path))
        saved = alike((run.handle.step, ratios(run.handle)))
        assert run.handle.report().decision.startswith("Using ")
        run.end()
    assert saved[0] > 0
    assert set(saved[1].values()) == {0.05}
    with scripted():
        run = parts.Run(rank, size, "auto", seed=99, attached={"min_ratio": 0.05})
        run.accelerator.load_state(str(tmp_path))
        assert (run.handle.step, ratios(run.handle)) == saved
        run.train(0, 1)
        assert run.handle.step == saved[0] + 1
        alike(run.end()[0])


@on("hugging_two")
def test_where_every_pass_is_exchanged_auto_does_without_the_codec(rank, size):
    """Each of two accumulated passes is exchanged, which a codec for AdamW refuses."""
    plugin = parts.GradientAccumulationPlugin(num_steps=2, sync_each_batch=True)
    with scripted(CODEC):
        run = parts.Run(rank, size, "auto", gradient_accumulation_plugin=plugin, accumulate=None)
        with pytest.raises(PairingWarning, match="does not try the codec"):  # of the first step
            run.train(0, UPDATES)
        run.end()


@pytest.mark.parametrize("how", ["plain", "scaler", "accumulated"])
@on("hugging_two")
def test_two_optimizers_that_it_prepares_train_as_with_ddp(rank, size, how):
    """With a codec of one of them that sends everything; the other has none."""
    prints = []
    for compressed in (True, False):
        parts.become(rank, size)
        accumulate = 2 if how == "accumulated" else 1
        one = parts.Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
        if how == "scaler":
            one.scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        model = network()
        made = [
            torch.optim.SGD(model[0].parameters(), lr=0.05),
            torch.optim.AdamW(model[1:].parameters(), lr=0.01),
        ]
        model, *made, loader = one.prepare(model, *made, parts.loader(4 * accumulate * size))
        if compressed:
            warnings.simplefilter("error", PairingWarning)
            codecs = [EVERYTHING, None]
            handle = parts.attach(one, model, codecs, optimizer=made)
        for inputs, targets in loader:
            with one.accumulate(model):
                one.backward(torch.nn.functional.mse_loss(model(inputs), targets))
                for each in made:
                    each.step()
                    each.zero_grad()
        if compressed:
            assert handle.step == 4
            handle.detach()
        prints.append(alike(fingerprint(model)))
    assert prints[0] == prints[1]
