"""Checkpoints resume bit for bit, and find their way into another number of ranks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.distributed.ranks import Ranks


@pytest.mark.parametrize(
    "codec",
    [
        ("topk", {"ratio": 0.02}),
        ("sidco", {"ratio": 0.02}),
        ("threshold", {"threshold": 0.02}),
        ("dgc", {"ratio": 0.02, "clip": 1.0}),
        ("scalecom", {"chunk": 50}),
        ("topk", {"ratio": 0.02, "memory": {"kind": "residual", "low_memory": True}}),
    ],
    ids=["topk", "sidco", "threshold", "dgc", "scalecom", "bfloat16"],
)
def test_resume_is_bit_for_bit(
    two: Ranks, codec: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    results = two.run("saving.resume", codec=codec, folder=str(tmp_path))
    for result in results:
        assert result["parameters"]
        assert result["residuals"]
        assert result["steps"] == (9, 9)
        assert result["left"] > 0


def test_resume_restores_the_limits_on_frame_sizes(two: Ranks) -> None:
    for result in two.run("saving.resume_before_a_burst"):
        assert result["trimmed"] > 0
        assert result["same"]


def test_sum_and_split_keeps_the_total(two: Ranks, three: Ranks, tmp_path: Path) -> None:
    folder = str(tmp_path)
    old = two.run("saving.save", folder=folder)
    new = three.run("saving.load", folder=folder, old_size=2, policy="sum-and-split")
    for name in old[0]:
        total = sum(each[name].astype(np.float64) for each in old)
        assert total.any()
        for result in new:
            np.testing.assert_array_equal(result["left"][name], (total / 3).astype(np.float32))
    assert all((result["step"], result["after"]) == (3, 4) for result in new)


def test_a_residual_is_kept_in_another_type_by_who_loads_it(two: Ranks, tmp_path: Path) -> None:
    folder = str(tmp_path)
    for saved, kept in (("float32", "bfloat16"), ("bfloat16", "float32")):
        old = two.run("saving.save", folder=folder, dtype=saved)
        new = two.run("saving.load", folder=folder, old_size=2, policy="keep", dtype=kept)
        for before, after in zip(old, new, strict=True):
            assert after["dtypes"] == {f"torch.{kept}"}
            for name, values in before.items():
                nearest = torch.from_numpy(values).bfloat16().float().numpy()
                np.testing.assert_array_equal(after["left"][name], nearest)


def test_sum_and_split_rounds_what_is_kept_in_bfloat16_once(
    two: Ranks, three: Ranks, tmp_path: Path
) -> None:
    folder, dtype = str(tmp_path), "bfloat16"
    old = two.run("saving.save", folder=folder, dtype=dtype)
    new = three.run("saving.load", folder=folder, old_size=2, policy="sum-and-split", dtype=dtype)
    for name in old[0]:
        total = sum(each[name].astype(np.float64) for each in old)
        share = torch.from_numpy((total / 3).astype(np.float32)).bfloat16().float().numpy()
        assert share.any()
        for result in new:
            np.testing.assert_array_equal(result["left"][name], share)


def test_new_ranks_start_from_the_average_momentum(
    two: Ranks, three: Ranks, tmp_path: Path
) -> None:
    folder = str(tmp_path)
    old = two.run("saving.save_momentum", folder=folder)
    for new in three.run("saving.load_momentum", folder=folder, old_size=2):
        for name in old[0]:
            total = sum(each[name].astype(np.float64) for each in old)
            assert total.any()
            np.testing.assert_array_equal(new[name], (total / 2).astype(np.float32))


def test_sum_and_split_to_fewer_ranks(two: Ranks, three: Ranks, tmp_path: Path) -> None:
    folder = str(tmp_path)
    old = three.run("saving.save", folder=folder)
    new = two.run("saving.load", folder=folder, old_size=3, policy="sum-and-split")
    for name in old[0]:
        total = sum(each[name].astype(np.float64) for each in old)
        rest = sum(result["left"][name].astype(np.float64) for result in new)
        np.testing.assert_allclose(rest, total, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("only_own", [False, True], ids=["all-files", "own-file"])
def test_keep_gives_every_old_rank_its_own(
    two: Ranks, three: Ranks, tmp_path: Path, only_own: bool
) -> None:
    folder = str(tmp_path)
    old = two.run("saving.save", folder=folder)
    new = three.run("saving.load", folder=folder, old_size=2, policy="keep", only_own=only_own)
    for name in old[0]:
        for rank in (0, 1):
            assert new[rank]["left"][name].tobytes() == old[rank][name].tobytes()
        assert not new[2]["left"][name].any()
    assert all((result["step"], result["after"]) == (3, 4) for result in new)


def test_drop_starts_without_residuals(two: Ranks, three: Ranks, tmp_path: Path) -> None:
    folder = str(tmp_path)
    two.run("saving.save", folder=folder)
    for result in three.run("saving.load", folder=folder, old_size=2, policy="drop"):
        assert not any(each.any() for each in result["left"].values())
        assert result["step"] == 3


def test_the_wrong_file_is_refused_on_every_rank(two: Ranks, tmp_path: Path) -> None:
    two.run("saving.save", folder=str(tmp_path))
    for found in two.run("saving.wrong_files", folder=str(tmp_path)):
        assert "rank 1 cannot load" in found["rank 0's on every rank"]
        assert "every rank has its own residual" in found["rank 0's on every rank"]
        assert "different runs or steps" in found["different steps"]
        assert "as a list on every rank, missing" in found["other world, own only"]
        assert "it lacks ['b', 'c']" in found["other model"]
        assert "version 2, got a dict with the key 'a'" in found["not a state_dict"]
        assert 'only policy "keep", "drop" or "own"' in found["nothing"]
        assert found["other codec"]
        assert found["untouched"] == "True"


def test_the_report_adds_up(two: Ranks) -> None:
    for rank, result in enumerate(two.run("saving.report")):
        report = json.loads(result["json"])
        assert (report["rank"], report["world_size"], report["steps"]) == (rank, 2, 6)
        assert report["collectives"] > 6
        # Two ranks: a ring all-reduce sends the buckets once, a ring all-gather the slots once.
        assert report["dense_wire_bytes"] == 4 * sum(result["sizes"].values())
        assert report["compression"] == pytest.approx(
            report["dense_wire_bytes"] / report["wire_bytes"]
        )
        payload = sum(each["bytes_per_step"] for each in report["parameters"])
        assert 0 < report["slot_use"] < 1
        assert payload == pytest.approx(report["slot_use"] * report["wire_bytes"])
        assert report["achieved"] == pytest.approx(1.0)
        assert report["residual_norm"] == pytest.approx(result["norm"])
        dense = {each["name"] for each in report["parameters"] if each["dense"]}
        assert dense == {name for name, size in result["sizes"].items() if size < 1024}
        stages = ("encode_ms", "exchange_ms", "decode_ms", "wait_ms")
        assert all(report[stage] > 0 for stage in stages)
        assert "0.weight" in result["text"]
        assert "x less than plain DDP (" in result["text"]
        assert result["second"].steps == 2
        assert (report["step"], result["metrics"]["step"]) == (6, 8)
        assert result["steps"] == 8
        assert "attached, step 8" in result["repr"]


def test_the_module_can_be_copied_and_pickled(two: Ranks) -> None:
    assert two.run("saving.copies") == [True, True]


def test_names_do_not_depend_on_torch_compile(two: Ranks) -> None:
    for plain, compiled in two.run("saving.compiled"):
        assert plain == compiled
        assert "0.weight" in plain
