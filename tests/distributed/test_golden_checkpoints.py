"""Checkpoints of an earlier release load: the files in ``tests/golden/checkpoints``."""

import numpy as np
import pytest
import torch

from tests.distributed.ranks import Ranks
from tests.distributed.scenarios.golden_checkpoints import CODECS, FOLDER

ON_TWO = [case for case in CODECS if case != "nodes"]


def total(case: str, kind: str, name: str, ranks: int) -> np.ndarray:
    """What all ranks held of a parameter when the file was made."""
    saved = torch.load(FOLDER / f"{case}.pt", weights_only=True)
    every = [saved[f"rank{rank}"][kind][name].double().numpy() for rank in range(ranks)]
    return np.asarray(np.sum(every, axis=0))


@pytest.mark.parametrize("case", ON_TWO)
def test_they_load_and_are_saved_again_as_they_were(two: Ranks, case: str) -> None:
    for result in two.run("golden_checkpoints.load", case=case):
        assert result["same"]
        assert result["steps"] == (3, 5)
        assert any(values.any() for one in result["kinds"].values() for values in one.values())


def test_those_of_nodes_load_and_are_saved_again_as_they_were(four: Ranks) -> None:
    for result in four.run("golden_checkpoints.load", case="nodes", hierarchy=2):
        assert result["same"]
        assert result["steps"] == (3, 5)


@pytest.mark.parametrize("case", ["topk", "topk_bfloat16", "dgc", "adam"])
def test_they_load_on_another_number_of_ranks(three: Ranks, case: str) -> None:
    for result in three.run("golden_checkpoints.load", case=case, gathers=False):
        for kind, one in result["kinds"].items():
            parts = 3 if kind == "residual" else 2  # moments are averaged over those that had them
            for name, values in one.items():
                expected = torch.from_numpy(total(case, kind, name, 2) / parts).float()
                if case == "topk_bfloat16":
                    expected = expected.bfloat16().float()
                np.testing.assert_array_equal(values, expected.numpy())
        assert result["steps"] == (3, 5)


def test_those_of_nodes_load_without_nodes(two: Ranks) -> None:
    """Residuals of a node are of its mean gradient: they count once for each of its ranks."""
    saved = torch.load(FOLDER / "nodes.pt", weights_only=True)
    for result in two.run("golden_checkpoints.load", case="nodes", gathers=False):
        for name, values in result["kinds"]["residual"].items():
            nodes = [
                torch.cat([saved[f"rank{2 * node + share}"]["residual"][name] for share in (0, 1)])
                for node in (0, 1)
            ]
            expected = (2 * nodes[0].float()).double() + (2 * nodes[1].float()).double()
            np.testing.assert_array_equal(values, (expected / 2).float().numpy())
