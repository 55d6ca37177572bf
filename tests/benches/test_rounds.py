"""What a run does with everybody, on tensors too short to say anything of speed."""

import json

import numpy as np
import pytest
import torch.distributed as dist

from benches.compare import (
    aims,
    dtypes,
    examples,
    files,
    hooks,
    levels,
    ours,
    peers,
    plan,
    presets,
    receive,
    record,
    show,
)
from benches.compare.laws import LAWS
from benches.compare.rounds import Case, run
from gradwire.presets import PRESETS

NUMEL, RATIO = 10_007, 0.01
EVERYONE = [*ours.ALL, *peers.ALL, *hooks.ALL]


def tick(_: str) -> None:
    pass


@pytest.fixture(scope="module", autouse=True)
def _no_process_group_is_left():
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def outcome():
    return run(Case("laplace", NUMEL, RATIO, 1), EVERYONE, 2, tick)


def test_everyone_sends_about_what_was_asked_or_everything(outcome):
    # The published controller of SIDCo promises nothing on a tensor as short as this.
    for result in (r for r in outcome.results if r.name != peers.SidcoInTorch.name):
        asked = result.count.median / (NUMEL * RATIO)
        assert result.count.median == NUMEL or 0.5 < asked < 2, result.name


def test_everyone_was_timed_and_has_a_setting(outcome):
    for kind, result in zip(EVERYONE, outcome.results, strict=True):
        assert kind.setting
        assert len(result.encode.values) == 2
    assert len({kind.name for kind in EVERYONE}) == len(EVERYONE)


def test_whoever_decodes_restores_what_was_sent():
    gradient = LAWS["laplace"](NUMEL, 0)
    for kind in (
        ours.TopK,
        ours.DenseHalf,
        ours.DenseNewFrame,
        peers.TorchTopK,
        peers.NumpyPartition,
        peers.Zstd,
    ):
        out = np.zeros_like(gradient)
        entrant = kind(NUMEL, RATIO)
        entrant.decode_add(entrant.encode(gradient), out)
        sent = out != 0
        np.testing.assert_allclose(out[sent], gradient[sent], rtol=2**-8, err_msg=kind.name)


def test_power_sgd_sends_two_factors_and_what_is_no_matrix():
    entrant = hooks.ALL[1](NUMEL, RATIO)
    gradient = LAWS["laplace"](NUMEL, 0)
    entrant.ready(gradient)
    wire = entrant.encode(gradient)
    assert entrant.nbytes(wire) == 4 * (2 * 100 + 7)


def test_layers_are_all_of_the_tensor():
    import torch

    for numel in (1000, 1_000_000, 2_500_000):
        flat = torch.arange(float(numel))
        assert torch.equal(torch.cat([layer.flatten() for layer in hooks.layers(flat)]), flat)


def test_every_preset_has_a_row_by_being_registered():
    measured = presets.measure(NUMEL, 1, 1, tick)
    small = [f"{name}, blocks of 32" for name in PRESETS if examples.has_blocks(PRESETS[name])]
    assert {"float8, blocks of 32", "qsgd, blocks of 32"} <= set(small)
    assert [row["name"] for row in measured["rows"]] == [*PRESETS, *small]
    assert presets.table(measured).row_count == len(PRESETS) + len(small)


def test_the_other_sections_make_tables():
    assert dtypes.table(dtypes.measure(NUMEL, 1, 1, tick)).row_count == len(dtypes.CODECS)
    assert receive.table(receive.measure(NUMEL, 1, 1, tick)).row_count == 2 * len(receive.RATIOS)


def test_levels_are_compared_by_copies_of_their_own_process():
    slow = {"copy": 1.0, "seconds": {"work": 4.0}, "sums": {"work": 7}}
    fast = {"copy": 0.5, "seconds": {"work": 1.0}, "sums": {"work": 7}}
    rows = list(levels.compare({"avx2": [slow], "avx512": [fast]}))
    assert [row["share"] for row in rows] == [0.5, 1.0]
    assert all(row["same_bytes"] for row in rows)


def test_other_bytes_on_one_level_are_noticed():
    slow, fast = ({"copy": 1.0, "seconds": {"w": 1.0}, "sums": {"w": crc}} for crc in (1, 2))
    rows = list(levels.compare({"avx2": [slow], "avx512": [fast]}))
    assert [row["same_bytes"] for row in rows] == [False, True]


def test_a_written_run_can_be_read_and_says_how_its_aims_fared(tmp_path, outcome):
    outcome.case = Case(plan.HEADLINE_LAW, plan.HEADLINE, 0.001, 1)
    sections = {"receive": [receive.measure(NUMEL, 1, 1, tick)]}
    document = record.document([outcome], sections, EVERYONE, record.machine())
    read = record.read(record.write(document, tmp_path / "run.json"))
    works = {work for work, _, _ in aims.rows(read)}
    assert "top-k with residual, 0.001, steady" in works
    assert "decode and add, 0.01, eight frames" in works
    assert "two threads beside one, top-k, 0.001" not in works
    assert aims.table(read).row_count == len(works)
    page = show.page(read, "run.json")
    assert "| 8 frames, 0.01 |" in "\n".join(page)
    assert page[-1] == "From `run.json`."


def test_runs_of_former_times_can_be_read():
    found = {path: files.read(path).get("outcomes", ()) for path in files.FOLDER.glob("*.json")}
    paths = [path for path, outcomes in found.items() if any("case" in each for each in outcomes)]
    assert paths
    for path in paths:
        document = record.read(path)
        assert {outcome["case"]["law"] for outcome in document["outcomes"]} <= set(LAWS), path
        json.dumps(document, allow_nan=False)
        assert list(aims.rows(document))
