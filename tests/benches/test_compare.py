"""What a comparison does with everybody, on tensors too short to say anything of speed."""

import numpy as np
import pytest
import torch.distributed as dist

pytest.importorskip("pandas", reason="the layer demo has pandas")

from benches.compare import contestants
from benches.compare.__main__ import COPY, Case, main, measure, readme, table
from benches.compare.contestants import OURS, PEERS, student
from benches.harness import pages, results
from gradwire.presets import PRESETS

pytestmark = pytest.mark.full  # runs a whole benchmark

NUMEL, RATIO = 10_007, 0.01
EVERYONE = [*OURS, *PEERS, *contestants.presets()]


@pytest.fixture(scope="module", autouse=True)
def _no_process_group_is_left():
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def rows():
    return measure(Case(NUMEL, RATIO, 1), EVERYONE, 2, lambda _: None)


def test_everyone_is_timed_beside_the_copy_and_has_a_setting(rows):
    assert [row["name"] for row in rows] == [COPY, *(kind.name for kind in EVERYONE)]
    assert all(row["seconds"] > 0 and row["rounds"] == 2 for row in rows)
    assert all(row["setting"] for row in rows[1:])
    assert len(EVERYONE) == len(OURS) + len(PEERS) + len(PRESETS)
    assert f"{NUMEL:,} float32, ratio 0.01" in table(rows)


@pytest.mark.parametrize("kind", [OURS[0], OURS[-1], *PEERS[:3]], ids=lambda kind: kind.name)
def test_whoever_decodes_restores_what_was_sent(kind):
    gradient, entrant = student(NUMEL, 0), kind(NUMEL, RATIO)
    out = np.zeros_like(gradient)
    entrant.decode_add(entrant.encode(gradient), out)
    sent = out != 0
    np.testing.assert_allclose(out[sent], gradient[sent], rtol=2**-8)


def test_a_written_run_is_shown_and_gives_the_block_of_the_readme(rows, tmp_path, capsys):
    headline = [{**row, "numel": 25_000_000, "threads": n} for n in (1, 2) for row in rows]
    document = {**results.circumstances(), "rows": headline}
    results.write(document, tmp_path / "run.json")
    assert main(["--show", str(tmp_path / "run.json")]) == 0
    assert capsys.readouterr().out.count("| gradwire topk   ") == 2
    block = readme(document, pages.ROOT / "benches" / "results" / "x.json")
    assert "**gradwire topk** (exact)" in block
    assert "on two cores" in block
    assert block.endswith("[all figures](benches/results/x.json)).")
