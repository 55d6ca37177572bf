"""Checkpoints find their way into another number of ranks, and what the report says of a run."""

import copy
import json
import pickle
import re

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import gradwire
import gradwire.torch.ddp
from tests.distributed.codecs import CODECS, SEVERAL
from tests.distributed.ranks import LazyModule, on
from tests.distributed.scenarios.common import (
    Given,
    about,
    attached,
    bits_left,
    changed,
    fingerprint,
    integers,
    network,
    residuals,
    train,
)

dcp = LazyModule("torch.distributed.checkpoint")

TOPK = CODECS["default"]


@on("two")
def test_resume_restores_the_limits_on_frame_sizes(rank):
    """Right before a step whose frames outgrow their limits, and have to be trimmed."""

    def step_on(model, handle, step):
        factor = 4 if step == 4 else 1
        model.zero_grad()
        model({name: factor * each for name, each in integers(10, rank, step).items()}).backward()
        return sum(each.trimmed for each in handle.report(reset=True).parameters)

    with attached(Given(), gradwire.threshold(20.0)) as (model, handle):
        for step in range(4):
            step_on(model, handle, step)
        saved = handle.state_dict()
        assert step_on(model, handle, 4) > 0
        whole = bits_left(handle)
    with attached(Given(), gradwire.threshold(20.0)) as (model, handle):
        handle.load_state_dict(saved)
        step_on(model, handle, 4)
        assert whole == bits_left(handle)


NARROW = CODECS["narrow"]


def save(rank, folder, codec):
    """Leave something to send, in a file for each rank and by torch.distributed.checkpoint."""
    with attached(Given(), codec) as (model, handle):
        for step in range(3):
            model.zero_grad()
            model(integers(9, rank, step)).backward()
        torch.save(handle.state_dict(), folder / f"rank{rank}.pt")
        dcp.save({"gradwire": handle}, checkpoint_id=str(folder / "dcp"))
        return held(handle, codec)


def load(rank, folder, old, policy, codec, how="files"):
    """Load what another number of ranks has saved; then train a step to see that it goes on."""
    saved = [torch.load(folder / f"rank{each}.pt", weights_only=True) for each in range(old)]
    with attached(Given(), codec) as (model, handle):
        if how == "dcp":
            resharded = {"gradwire": handle.resharded(old, policy)}
            dcp.load(resharded, checkpoint_id=str(folder / "dcp"))
        elif how == "own file":
            handle.load_state_dict(saved[rank] if rank < old else None, policy=policy)
        else:
            handle.load_state_dict(saved, policy=policy)
        found = held(handle, codec)
        assert handle.step == 3
        model(integers(9, rank, 3)).backward()
        assert handle.step == 4
        return found


def held(handle, codec):
    """What this rank has still to send, and its momentum, as arrays."""
    (saved,) = handle.state_dict().values()
    dtype = torch.bfloat16 if codec == NARROW else torch.float32
    assert {each.dtype for each in saved["residual"].values()} == {dtype}
    return [
        {name: each.float().numpy() for name, each in saved[kind].items()}
        for kind in ("residual", "momentum")
    ]


def in_bfloat16(values):
    """The nearest values of that type."""
    return torch.from_numpy(values).bfloat16().float().numpy()


def total_of(old, name, kind=0):
    """What all ranks had of a parameter."""
    total = sum(each[kind][name].astype(np.float64) for each in old)
    assert total.any()
    return total


@pytest.mark.parametrize("how", ["files", "own file", "dcp"])
@pytest.mark.parametrize(("old", "new"), [(2, 3), (3, 2)])
def test_residuals_are_divided_kept_or_dropped_among_other_ranks(
    two, three, tmp_path, old, new, how
):
    ranks = {2: two, 3: three}
    saved = ranks[old].run(save, folder=tmp_path, codec=TOPK)
    for policy in ("sum-and-split", "keep", "drop"):
        if how == "own file" and policy == "sum-and-split":
            continue  # which takes all files
        options = {"policy": policy, "codec": TOPK, "how": how}
        for rank, (left, _) in enumerate(ranks[new].run(load, folder=tmp_path, old=old, **options)):
            for name, each in left.items():
                expected = (total_of(saved, name) / new).astype(np.float32)
                if policy != "sum-and-split":
                    expected = np.zeros_like(expected)
                if policy == "keep" and rank < old:
                    expected = saved[rank][0][name]
                np.testing.assert_array_equal(each, expected, err_msg=f"{policy} {rank} {name}")


def test_sum_and_split_rounds_what_is_kept_in_bfloat16_once(two, three, tmp_path):
    old = two.run(save, folder=tmp_path, codec=NARROW)
    policy = "sum-and-split"
    for left, _ in three.run(load, folder=tmp_path, old=2, policy=policy, codec=NARROW):
        for name, each in left.items():
            share = (total_of(old, name) / 3).astype(np.float32)
            np.testing.assert_array_equal(each, in_bfloat16(share))


@pytest.mark.parametrize("codecs", [(TOPK, NARROW), (NARROW, TOPK)], ids=["narrower", "wider"])
def test_a_residual_is_kept_in_another_type_by_who_loads_it(two, tmp_path, codecs):
    old = two.run(save, folder=tmp_path, codec=codecs[0])
    new = two.run(load, folder=tmp_path, old=2, policy="keep", codec=codecs[1])
    for (before, _), (after, _) in zip(old, new, strict=True):
        for name, values in before.items():
            np.testing.assert_array_equal(after[name], in_bfloat16(values))


def test_new_ranks_start_from_the_average_momentum(two, three, tmp_path):
    codec = gradwire.dgc(ratio=0.05)
    old = two.run(save, folder=tmp_path, codec=codec)
    for _, momentum in three.run(load, folder=tmp_path, old=2, policy="sum-and-split", codec=codec):
        for name, each in momentum.items():
            average = (total_of(old, name, 1) / 2).astype(np.float32)
            np.testing.assert_array_equal(each, average)


def refuses(rank, folder):
    """Load what is not of this run: refused on every rank, and all stays as it was."""
    own, first = (torch.load(folder / f"rank{each}.pt", weights_only=True) for each in (rank, 0))
    told = about(own)
    pruned = changed(own, parameters={"a": told["parameters"]["a"]})
    for kind in ("residual", "momentum", "measured"):
        (only,) = pruned.values()
        only[kind] = {name: each for name, each in only[kind].items() if name == "a"}
    with attached(Given(), TOPK) as (model, handle):
        model(integers(9, rank, 0)).backward()
        before = bits_left(handle)
        for saved, said in (
            (first, "rank 1 cannot load.*every rank has its own residual"),
            (changed(own, step=told["step"] + rank), "different runs or steps"),
            (changed(own, world_size=3), "as a list on every rank, missing"),
            (pruned, re.escape("it lacks ['b', 'c']")),
            ({"a": 1}, "version 2, got a dict with the key 'a'"),
            (None, 'only policy "keep", "drop" or "own"'),
        ):
            with pytest.raises(ValueError, match=re.compile(said, re.DOTALL)):
                handle.load_state_dict(saved)
        assert before == bits_left(handle)
    with (
        attached(Given(), gradwire.sidco(ratio=0.05)) as (_, handle),
        pytest.raises(ValueError, match=r"."),
    ):
        handle.load_state_dict(own)


def test_the_wrong_file_is_refused_on_every_rank(two, tmp_path):
    two.run(save, folder=tmp_path, codec=TOPK)
    two.run(refuses, folder=tmp_path)


@on("two")
def test_the_report_adds_up(rank):
    """Also after a reset."""
    with attached(network(), TOPK, **SEVERAL) as (model, handle):
        train(model, rank, range(6))
        first = handle.report(reset=True)
        left = residuals(handle)
        train(model, rank, range(6, 8))
        second = handle.report()
        assert handle.step == handle.metrics()["step"] == 8
        assert "attached, step 8" in repr(handle)
    sizes = {name: each.numel() for name, each in model.module.named_parameters()}
    report, shown = json.loads(first.to_json()), str(first)
    assert (report["rank"], report["world_size"], report["steps"]) == (rank, 2, 6)
    assert report["step"] == 6
    assert report["collectives"] > 6
    # Two ranks: a ring all-reduce sends the buckets once, a ring all-gather the slots once.
    assert report["dense_wire_bytes"] == 4 * sum(sizes.values())
    ratio = report["dense_wire_bytes"] / report["wire_bytes"]
    assert report["compression"] == pytest.approx(ratio)
    payload = sum(each["bytes_per_step"] for each in report["parameters"])
    assert 0 < report["slot_use"] < 1
    assert payload == pytest.approx(report["slot_use"] * report["wire_bytes"])
    assert report["achieved"] == pytest.approx(1.0)
    norm = np.sqrt(sum((each.astype(np.float64) ** 2).sum() for each in left.values()))
    assert report["residual_norm"] == pytest.approx(norm)
    dense = {each["name"] for each in report["parameters"] if each["dense"]}
    assert dense == {name for name, size in sizes.items() if size < 1024}
    stages = ("encode_ms", "exchange_ms", "decode_ms", "wait_ms")
    assert all(report[stage] > 0 for stage in stages)
    assert "0.weight" in shown
    assert "x less than plain DDP (" in shown
    assert second.steps == 2


@on("two")
def test_the_module_can_be_copied_and_pickled(rank):
    """A copy of the wrapped module is free of threads and process groups."""
    model = DistributedDataParallel(network())
    with gradwire.torch.ddp.attach(model, TOPK):
        train(model, rank, range(2))
        again = pickle.loads(pickle.dumps(model.module))
        deep = copy.deepcopy(model.module)
    assert fingerprint(again) == fingerprint(model.module) == fingerprint(deep)


@on("two")
def test_names_do_not_depend_on_torch_compile():
    module = network()
    with attached(module, TOPK) as (_, handle):
        plain = set(residuals(handle))
    assert "0.weight" in plain
    module[0] = torch.compile(module[0], backend="eager")
    outer = torch.compile(module, backend="eager")
    with attached(outer, TOPK) as (_, handle):
        assert set(residuals(handle)) == plain
