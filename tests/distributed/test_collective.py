"""`gradwire.torch.all_reduce`: tensors of any loop, over real processes."""

import numpy as np
import pytest

from tests.distributed.ranks import Ranks


def test_every_codec_gives_all_ranks_the_same_bits_and_loses_nothing(ranks: Ranks) -> None:
    results = ranks.run("collective.averages")
    for name in results[0]:
        found = [each[name] for each in results]
        assert all(each["bits"] == found[0]["bits"] for each in found), name
        assert {each["step"] for each in found} == {4}, name
        if name == "senders":
            continue  # which is no mean of what the ranks gave
        given = np.mean([each["given"] for each in found], axis=0)
        left = np.mean([each["residual"] for each in found], axis=0)
        tolerance = 1e-4 if name in ("two bits", "shared") else 1e-5
        assert np.allclose(found[0]["sum"] + left, given, rtol=0, atol=tolerance * 40), name


def test_a_list_is_what_its_tensors_are_one_by_one(two: Ranks) -> None:
    first, second = two.run("collective.lists")
    assert first["same"] == [True] * 5
    assert first["bits"] == second["bits"]
    assert first["residuals"]
    assert first["sum"]
    assert first["done"]


def test_what_is_wrong_on_one_rank_is_an_error_on_all_and_changes_nothing(two: Ranks) -> None:
    first, second = two.run("collective.failures")
    for found in (first, second):
        kind, text, kept = found["not finite"]
        assert kind == "TensorError"
        assert kept
        assert "tensor 'velocity' on rank 1 has 1 non-finite value(s), the first at flat" in text
        for name, what in (("codec", "codec"), ("op", "op"), ("shape", "tensors")):
            kind, text, kept = found[name]
            assert kind == "AgreementError"
            assert kept
            assert f"rank 1 and rank 0 called all_reduce() with different {what}" in text
        assert found["unchanged"]
        assert found["flushes"]
    assert first["goes on"] == second["goes on"]


def test_wrong_arguments_are_explained(two: Ranks) -> None:
    (found, _) = two.run("collective.wrong_arguments")
    expected = {
        "no codec": "the function topk itself; call it",
        "no state": "gradwire.torch.init_state(codec, tensor)",
        "none": "got 0 tensors and 0 states",
        "twice": "got 2 tensors and 1 states",
        "length": "state 0 is for 50 entries, tensor 0 has 51",
        "integers": "got torch.int32",
        "other codec": "make one with gradwire.torch.init_state(codec, tensor)",
        "parameter": "pass tensor.detach()",
        "tiles": "gradwire.torch.init_state(codec.for_shape(tensor.shape), tensor)",
        "group": "a process group that this rank is in",
        "op": "op must be one of mean, sum, got 'max'",
    }
    assert found.keys() == expected.keys()
    for name, text in expected.items():
        assert text in found[name], name


def test_it_ends_with_the_group_or_when_it_is_closed_or_dropped(two: Ranks) -> None:
    for rank, found in enumerate(two.run("collective.lifetime")):
        assert found["kept"] == 2
        assert found["with the group"]
        assert found["shown"] == (f"<gradwire.torch.Reducer: rank {rank} of 2>", rank, 2)
        assert "closed" in found["closed"]
        assert found["dropped"]


def test_a_rank_that_does_not_call_is_an_error_and_no_hang(short_lived: Ranks) -> None:
    (kind, text), _ = short_lived.try_run("collective.absent")
    assert kind == "returned"
    assert "did not call all_reduce()" in text


@pytest.mark.parametrize("name", ["all_reduce", "Reducer", "collective"])
def test_it_is_found_where_it_is_looked_for(name: str) -> None:
    import gradwire.torch

    assert getattr(gradwire.torch, name)
