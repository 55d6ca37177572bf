"""How a model is divided, and when its fragments are exchanged."""

import pytest
import torch

import gradwire
from gradwire.torch.diloco import DiLoCo, Membership, sparseloco
from gradwire.torch.diloco.fragments import Timetable, divide
from gradwire.torch.transport.store import stores

NAMES = dict.fromkeys(
    ["embed.weight", "blocks.0.a", "blocks.0.norm.b", "blocks.1.a", "blocks.2.a", "head.weight"]
)


def test_layers_go_to_fragments_in_strides():
    assert divide(NAMES, 1) == (tuple(NAMES),)
    assert divide(NAMES, 2) == (
        ("embed.weight", "blocks.1.a", "head.weight"),
        ("blocks.0.a", "blocks.0.norm.b", "blocks.2.a"),
    )
    given = [["blocks"], ["embed.weight", "head"]]
    assert [len(each) for each in divide(NAMES, given)] == [4, 2]


@pytest.mark.parametrize(
    ("fragments", "text"),
    [
        (6, "the model has 5 layers, got 6 fragments"),
        (0, "fragments"),
        ([["blocks"]], "parameter 'embed.weight' is in 0 fragments instead of one"),
        ([list(NAMES), ["head"]], "parameter 'head.weight' is in 2 fragments instead of one"),
        ([list(NAMES), []], "a fragment has no parameters"),
    ],
)
def test_what_cannot_be_divided_is_explained(fragments, text):
    with pytest.raises(ValueError, match=text):
        divide(NAMES, fragments)


def test_every_fragment_is_sent_once_in_so_many_steps_and_applied_later():
    table = Timetable(10, 3, 4)
    assert [table.sent_at(number) for number in range(7)] == [3, 6, 10, 13, 16, 20, 23]
    assert [table.applied_at(number) for number in range(3)] == [7, 10, 14]
    with pytest.raises(ValueError, match="delay"):
        Timetable(10, 1, 10)
    with pytest.raises(ValueError, match="3 fragments cannot be sent in 2 inner steps"):
        Timetable(2, 3, 0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"codec": gradwire.adam(0.1)}, "turns gradients into steps"),
        ({"codec": gradwire.sparseloco}, "the function sparseloco itself; call it"),
        ({"outer_lr": 0.0}, "outer_lr"),
        ({"outer_momentum": 1.0}, "outer_momentum must be less than 1"),
        ({"mixing": -0.1}, "mixing must be finite and not negative"),
        (
            {"delay": 1, "mixing": 0.5},
            r"mixing=0.5 needs a codec without a residual.*Residual.*: leave mixing= out",
        ),
        (
            {"outer_lr": 3.5, "outer_momentum": 0.0, "mixing": 0.5, "codec": gradwire.dense()},
            "mixing=0.5 does not work with outer_lr=3.5 .* diverges at 3 or above",
        ),
        (
            {"outer_lr": 2.1, "mixing": 0.5, "codec": gradwire.dense()},
            "mixing=0.5 does not work with outer_lr=2.1 .* diverges at 2.04 or above",
        ),
        ({"optimizer": 0.1}, "optimizer must be a torch.optim.Optimizer, or None"),
        ({"model": torch.nn.Flatten()}, "no parameters that require gradients"),
        ({}, "init_process_group"),
    ],
)
def test_wrong_arguments_are_explained(options, text):
    options = {"model": torch.nn.Linear(9, 9), "codec": gradwire.sparseloco(), **options}
    with pytest.raises((TypeError, ValueError), match=text):
        DiLoCo(options.pop("model"), options.pop("codec"), **options)


@pytest.mark.parametrize(
    ("options", "mixing", "carry"),
    [
        ({}, 0.0, False),  # nothing is trained between sending and applying
        ({"delay": 1}, 0.0, True),
        ({"delay": 1, "outer_lr": 4.0}, 0.0, True),
        ({"delay": 1, "mixing": 0.0}, 0.0, False),
        ({"delay": 1, "mixing": 0.5, "codec": gradwire.dense()}, 0.5, False),
    ],
)
def test_what_a_rank_trains_during_a_delay_is_carried_unless_it_is_told_to_mix(
    options, mixing, carry
):
    options = {"codec": gradwire.sparseloco(), **options}
    members = Membership(stores.HashStore())
    model = torch.nn.Linear(9, 9)
    with DiLoCo(model, options.pop("codec"), membership=members, **options) as outer:
        assert outer._replica.outer.mixing == mixing
        assert outer._replica.outer.carry == carry


def test_the_preset_keeps_its_recipe():
    """Section 3 of the paper, with the values of its experiments."""
    model = torch.nn.Linear(128, 64, bias=False)  # two tiles of 64 x 64
    members = Membership(stores.HashStore())
    with torch.no_grad(), sparseloco(model, membership=members) as outer:
        begun, own = model.weight.clone(), 0.01 * torch.randn(64, 128)
        model.weight -= own
        residual, rounds = torch.zeros(64, 128), []
        for step in range(60):
            assert outer.rounds == step // 30
            outer.step()
            if outer.rounds > len(rounds):
                sent = begun - model.weight
                residual = 0.95 * residual + own - sent  # no momentum, and an outer rate of 1
                ((_, saved),) = outer.state_dict().items()
                assert torch.allclose(saved["residual"]["weight"], residual, atol=1e-6)
                assert not saved["velocity"]
                rounds.append(sent)
                begun, own = model.weight.clone(), torch.zeros(64, 128)
    assert len(rounds) == 2
    for sent in rounds:
        for tile in (sent[:, :64], sent[:, 64:]):
            assert int((tile != 0).sum()) == 64
            assert len((tile[tile != 0] * 1e5).round().unique()) <= 4  # two bits
    with pytest.raises(TypeError, match="multiple values for keyword argument 'outer_momentum'"):
        sparseloco(torch.nn.Linear(9, 9), outer_momentum=0.9)
