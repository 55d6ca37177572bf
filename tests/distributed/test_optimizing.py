"""Optimizers that attach sees: only what they apply stays in the residuals, alike on all ranks."""

from typing import Any

import pytest

from tests.distributed.ranks import Ranks

KINDS = ["momentum", "adam"]
ALL_KINDS = [*KINDS, "plain"]
MODES = [{}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}]


@pytest.mark.parametrize("dense_first", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_on_the_ranks_is_sgd_if_everything_is_sent(
    two: Ranks, nesterov: bool, dense_first: bool
) -> None:
    found = two.run("optimizing.all_sent", nesterov=nesterov, dense_first=dense_first)
    assert max(found) < 1e-6


@pytest.mark.parametrize("ddp", MODES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_accumulating_without_no_sync_is_refused_before_anything_is_compressed(
    two: Ranks, kind: str, ddp: dict[str, Any]
) -> None:
    results = two.run("optimizing.accumulating", kind=kind, ddp=ddp)
    for found in results:
        assert all("no_sync()" in error for error in found["errors"])
        assert found["collectives"] == 0
        assert found["frozen"]
        assert found["stepped"] == 4, "the one that is thrown away"
        assert found["same"]
        assert found["print"] == results[0]["print"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_on_top_of_an_update_is_not_applied(two: Ranks, kind: str) -> None:
    for text in two.run("optimizing.mixed_without_exchange", kind=kind):
        assert "zero_grad() between passes" in text


@pytest.mark.full
@pytest.mark.parametrize("ddp", MODES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_exchanges_what_no_sync_left(ranks: Ranks, kind: str, ddp: dict[str, Any]) -> None:
    results = ranks.run("optimizing.exchanged_by_the_step", kind=kind, ddp=ddp)
    for found in results:
        assert found["same"]
        assert found["print"] == results[0]["print"]
        assert found["clipped"] == results[0]["clipped"]
        assert max(found["norms"]) < 0.0101
    assert results[0]["norms"] != results[1]["norms"], "each rank clips its own gradients"


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_exchanges_what_a_pause_averaged(two: Ranks, kind: str) -> None:
    first, second = two.run("optimizing.paused_then_applied", kind=kind)
    assert first == second
    assert first["steps"] == 8


@pytest.mark.full
@pytest.mark.parametrize("ddp", MODES, ids=str)
@pytest.mark.parametrize("kind", ALL_KINDS)
def test_passes_that_are_cleared_leave_no_trace(
    ranks: Ranks, kind: str, ddp: dict[str, Any]
) -> None:
    results = ranks.run("optimizing.thrown_away", kind=kind, ddp=ddp)
    for found in results:
        assert found["same"]
        assert found["print"] == results[0]["print"]
        assert found["steps"] == 10


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_holds_only_what_was_applied(two: Ranks, kind: str) -> None:
    first, second = two.run("optimizing.saved_before_the_step", kind=kind)
    assert first == second
    assert first["same"]
    assert "since been rolled back" in first["error"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("step", ["was not exchanged", "backward() with no step() after pass 2"]),
        ("no_sync", ["did not call step()", "was not exchanged"]),
    ],
)
def test_ranks_at_odds_get_a_typed_error(short_lived: Ranks, what: str, said: list[str]) -> None:
    texts = short_lived.run("optimizing.at_odds", kind="momentum", what=what)
    for text, expected in zip(texts, said, strict=True):
        assert expected in text


def test_an_optimizer_keeps_no_model_alive(two: Ranks) -> None:
    for found in two.run("optimizing.letting_go"):
        assert found == {"alive": 0, "links": 0, "handle": False, "weight": False}


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_two_models_may_share_an_optimizer(two: Ranks, kind: str) -> None:
    first, second = two.run("optimizing.one_optimizer_for_two", kind=kind)
    assert first == second


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_ranks_without_inputs_follow(two: Ranks, kind: str) -> None:
    first, second = two.run("optimizing.joining", kind=kind)
    assert first == second


def test_ranks_must_agree_on_the_optimizer(two: Ranks) -> None:
    for texts in two.run("optimizing.disagreeing"):
        assert len(texts) == 5
        for text in texts:
            assert "rank 1 and rank 0 attached with different optimizer" in text


@pytest.mark.parametrize("kind", KINDS)
def test_a_generator_may_pass_through_a_discriminator_that_is_cleared_or_paused(
    two: Ranks, kind: str
) -> None:
    for first, second in zip(
        *(two.run("optimizing.adversaries", kind=kind, how=how) for how in ("cleared", "paused")),
        strict=True,
    ):
        assert first == second
    for found in two.run("optimizing.adversaries", kind=kind, how="tutorial"):
        assert "zero_grad() between passes" in found["error"]


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_another_optimizer_than_the_attached_one_is_refused_at_its_first_step(
    two: Ranks, kind: str
) -> None:
    first, second = two.run("claims.another", kind=kind)
    assert first == second
    own = {"momentum": "torch.optim.SGD", "adam": "torch.optim.AdamW"}
    for what, name in (
        ("anew", own.get(kind, "torch.optim.SGD")),
        ("of torch", "torch.optim.Adam"),
        ("of a part", "torch.optim.SGD"),
    ):
        text = first["texts"][what]
        assert text.startswith(
            f"{name} would apply gradients that were exchanged for another optimizer, the "
        )
        assert f"the {own.get(kind, 'torch.optim.SGD')} that attach() was given" in text
        assert "detach()" in text
    assert first["steps"] == 3, "the last one is undone by the next"
    assert first["same"], "as if there had been no other one"


@pytest.mark.parametrize("how", ["plain", "wrapped", "zero", "lbfgs", "two", "checkpoint"])
def test_optimizers_that_go_together_are_let_alone(two: Ranks, how: str) -> None:
    first, second = two.run("claims.legitimate", how=how)
    assert first == second
    assert first["steps"] >= 5


@pytest.mark.parametrize(
    ("how", "refused"),
    [
        ("by hand", True),
        ("probes", False),
        ("discarded", False),
        ("paused", False),
        ("sometimes", False),
    ],
)
@pytest.mark.parametrize("kind", ["adam", "plain"])
def test_a_model_that_something_else_trains_is_told_after_three_undone_passes(
    two: Ranks, kind: str, how: str, refused: bool
) -> None:
    first, second = two.run("claims.unstepped", kind=kind, how=how)
    assert first == second
    assert bool(first["text"]) == refused
    assert first["passes"] == (3 if refused else 8)
    assert first["hooks"] == 0
    if refused:
        assert "Pass the optimizer that the loop steps" in first["text"]
    if how in ("by hand", "probes", "discarded", "paused"):
        assert first["steps"] == 4
