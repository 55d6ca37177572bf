"""What `attach` says of an optimizer, and what it refuses."""

import copy
import io
import threading
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch.optim import SGD, AdamW

import gradwire
from gradwire.torch import ddp


def told(model, codec, optimizer=None):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", "There is only one rank")
        ddp.attach(model, codec, optimizer=optimizer).detach()
    for each in caught:
        assert each.category is ddp.PairingWarning
        assert each.filename == __file__
    return " ".join(str(each.message) for each in caught)


def adapted(optimizer):
    hooks = [
        *optimizer._optimizer_step_pre_hooks,
        *optimizer._optimizer_step_post_hooks,
        *optimizer._optimizer_state_dict_post_hooks,
        *optimizer._optimizer_load_state_dict_post_hooks,
    ]
    return bool(hooks) or any("gradwire" in name for name in vars(optimizer))


class Renamed(AdamW):
    """What a program derives for its defaults."""


class Overriding(AdamW):
    """What makes steps of its own."""

    def step(self, closure=None):
        return super().step(closure)


def topk():
    return gradwire.topk(0.01)


def dgc(**options):
    return gradwire.dgc(0.01, **options)


@pytest.mark.parametrize(
    ("codec", "make", "advice"),
    [
        (topk, lambda p: torch.optim.SGD(p, lr=0.1), ""),
        (topk, lambda p: torch.optim.Adam(p, betas=(0.0, 0.99)), ""),
        (topk, AdamW, "AdamW has a first moment, .*gradwire.adam(ratio=...) with torch.optim.A"),
        (topk, lambda p: SGD(p, 0.1, 0.9), "SGD has momentum, .*Better: momentum=0, with a lear"),
        (gradwire.onebit, lambda p: SGD(p, 0.1, 0.9), ""),
        (gradwire.onebit, torch.optim.AdamW, ""),
        (gradwire.qsgd, torch.optim.AdamW, ""),
        (dgc, lambda p: SGD(p, lr=0.1, momentum=0.9), ""),
        (dgc, lambda p: SGD(p, 0.1), ""),
        (lambda: dgc(momentum=0.9), lambda p: SGD(p, 0.1), ""),
        (dgc, lambda p: torch.optim.RMSprop(p, 0.1, momentum=0.9), "again: use torch.optim.SGD(m"),
    ],
    ids=str,
)
def test_a_pairing_that_costs_accuracy_is_told_with_a_better_one(model, codec, make, advice):
    text = told(model, codec(), make(model.parameters()))
    assert all(each in text for each in advice.split(".*"))
    assert bool(advice) == bool(text)


def test_a_warning_that_is_an_error_leaves_nothing_attached(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    threads = threading.active_count()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ddp.PairingWarning)
        with pytest.raises(ddp.PairingWarning, match="has momentum"):
            ddp.attach(model, topk(), optimizer=optimizer)
    assert threading.active_count() == threads
    assert "has momentum" in told(model, topk(), optimizer)


def test_without_an_optimizer_it_is_told_that_nothing_can_be_checked(model):
    assert "no optimizer=" in told(model, gradwire.topk(0.01))
    assert told(model, gradwire.qsgd()) == ""


@pytest.mark.parametrize(("name", "value"), [("momentum", 0.8), ("nesterov", True)])
def test_momentum_is_the_optimizers_and_may_be_said_again(model, name, value):
    optimizer = SGD(model.parameters(), lr=0.1, **{"momentum": 0.9, name: value})
    other = 0.7 if name == "momentum" else False
    with pytest.raises(ValueError, match=f"the codec's {name} is {other}.*Leave {name}= out"):
        ddp.attach(model, dgc(**{name: other}), optimizer=optimizer)
    for codec in (dgc(), dgc(**{name: value})):
        with ddp.attach(model, codec, optimizer=optimizer) as handle:
            memory = handle._parameters["weight"].codec.memory
            assert (memory.momentum, getattr(memory, name)) == (
                optimizer.defaults["momentum"],
                value,
            )
    assert not adapted(optimizer)


@pytest.mark.parametrize(
    ("codec", "make", "said"),
    [
        (gradwire.adam, None, r"got no optimizer: use torch\.optim\.AdamW\(model"),
        (gradwire.adam, torch.optim.NAdam, r"got .*: use torch\.optim\.AdamW\(model"),
        (gradwire.adam, Overriding, r"got .*: use torch\.optim\.AdamW\(model"),
        (gradwire.adam, lambda p: SGD(p, lr=0.1), r"got .*: use torch\.optim\.AdamW\(model"),
        (
            gradwire.adam,
            lambda p: torch.optim.Adam(p, weight_decay=0.1),
            r"weight_decay=0\.1.* does not see: .* use torch\.optim\.AdamW",
        ),
        (dgc, AdamW, r"unchanged; use torch\.optim\.SGD\(model"),
    ],
)
def test_what_a_codec_computes_needs_an_optimizer_that_applies_it(model, codec, make, said):
    optimizer = make and make(model.parameters())
    with pytest.raises(ValueError, match=said):
        ddp.attach(model, codec(), optimizer=optimizer)


def test_adamw_adam_and_what_is_derived_from_them_apply_updates(model):
    for make in (AdamW, torch.optim.Adam, Renamed):
        assert told(model, gradwire.adam(), make(model.parameters())) == ""
    assert told(model, gradwire.adam_onebit(), AdamW(model.parameters())) == ""


@pytest.mark.parametrize(
    ("name", "options"), [("beta2", {"betas": (0.9, 0.95)}), ("eps", {"eps": 1e-6})]
)
def test_beta2_and_eps_are_those_of_each_group(model, name, options):
    optimizer = AdamW(model.parameters(), **options)
    with pytest.raises(ValueError, match=f"the codec's {name} is .*Leave {name}= out"):
        ddp.attach(model, gradwire.adam(**{name: 0.5}), optimizer=optimizer)
    groups = [{"params": [model.module.weight]}, {"params": [model.module.bias], **options}]
    optimizer = AdamW(groups)
    with ddp.attach(model, gradwire.adam(), optimizer=optimizer, min_numel=0) as handle:
        own = {key: each.codec.memory for key, each in handle._parameters.items()}
        assert (own["weight"].beta2, own["weight"].eps) == (0.999, 1e-8)
        assert getattr(own["bias"], name) == {"beta2": 0.95, "eps": 1e-6}[name]


@pytest.mark.parametrize(
    ("make", "suited"),
    [
        (AdamW, gradwire.adam(0.01)),
        (torch.optim.Adam, gradwire.adam(0.01)),
        (lambda p: SGD(p, 0.1, 0.9), gradwire.dgc(0.01)),
        (lambda p: SGD(p, 0.1), gradwire.topk(0.01)),
        (lambda p: torch.optim.Adam(p, weight_decay=0.1), "Adam has weight_decay=0.1"),
        (lambda p: AdamW(p, amsgrad=True), "AdamW has amsgrad=True"),
        (lambda p: SGD(p, 0.1, 0.9, 0.5), "SGD has dampening=0.5"),
        (torch.optim.RMSprop, "torch.optim.RMSprop is not torch.optim.AdamW, Adam, SGD or Muon"),
    ],
)
def test_without_a_codec_it_is_that_which_suits_the_optimizer(model, make, suited):
    optimizer = make(model.parameters())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ddp.PairingWarning)
        with ddp.attach(model, optimizer=optimizer) as handle:
            assert handle.codec == (gradwire.float8() if isinstance(suited, str) else suited)
    words = [str(each.message) for each in caught if each.category is ddp.PairingWarning]
    assert all(each.filename == __file__ for each in caught)
    if isinstance(suited, str):
        (words,) = words
        assert suited in words
        assert "a quarter of the bytes" in words
    else:
        assert not words
    with pytest.raises(TypeError, match=r"needs optimizer=.*or a codec, such as"):
        ddp.attach(model)


def test_a_codec_may_be_the_name_of_a_preset(model):
    optimizer = SGD(model.parameters(), lr=0.1)
    with ddp.attach(model, {"weight": "qsgd"}, optimizer=optimizer) as handle:
        assert handle.codec == {"weight": gradwire.qsgd()}
    with pytest.raises(ValueError, match="topk"):
        ddp.attach(model, "topq", optimizer=optimizer)


def test_memories_may_be_kept_in_bfloat16(model):
    for codec in (gradwire.adam(), gradwire.onebit(), "adam"):
        optimizer = AdamW(model.parameters())
        with ddp.attach(model, codec, optimizer=optimizer, low_memory=True) as handle:
            assert handle.codec.memory.low_memory
    with pytest.raises(ValueError, match=r"MomentumCorrection\(.*\) is float32"):
        ddp.attach(model, dgc(), optimizer=SGD(model.parameters(), lr=0.1), low_memory=True)


@pytest.mark.parametrize(
    ("codec", "make", "option", "value", "neutral"),
    [
        (gradwire.adam, AdamW, "amsgrad", True, False),
        (gradwire.adam, AdamW, "capturable", True, False),
        (gradwire.adam, AdamW, "differentiable", True, False),
        (dgc, SGD, "dampening", 0.5, 0.0),
        (dgc, SGD, "differentiable", True, False),
    ],
)
def test_what_no_codec_follows_is_refused_by_name(model, codec, make, option, value, neutral):
    own = {} if make is AdamW else {"momentum": 0.9}
    optimizer = make(model.parameters(), lr=0.1, **own, **{option: value})
    with pytest.raises(ValueError, match=f"{option}={value}.*leave {option}= out"):
        ddp.attach(model, codec(), optimizer=optimizer)
    told(model, gradwire.float8(), optimizer)  # which sends gradients
    # What is sent dense may have it; but torch itself refuses one on a CPU.
    bias = {"params": [model.module.bias], option: value if option != "capturable" else neutral}
    optimizer = make([{"params": [model.module.weight]}, bias], lr=0.1, **own)
    with ddp.attach(model, codec(), optimizer=optimizer):
        optimizer.zero_grad()
        model(torch.ones(2, 64)).sum().backward()
        before = copy.deepcopy(model.module.state_dict())
        optimizer.param_groups[0][option] = value
        with pytest.raises(ValueError, match=f"leave {option}= out"):
            optimizer.step()
        assert all(map(torch.equal, before.values(), model.module.state_dict().values()))
        optimizer.param_groups[0][option] = neutral
        optimizer.step()
        assert not torch.equal(before["weight"], model.module.weight)
    with pytest.warns(ddp.PairingWarning, match="'weight', are not in any group"):
        handle = ddp.attach(model, codec(), optimizer=(later := make([dict(bias)], lr=0.1, **own)))
    with handle:
        later.add_param_group({"params": [model.module.weight], option: value})
        model(torch.ones(2, 64)).sum().backward()
        with pytest.raises(ValueError, match=f"leave {option}= out"):
            later.step()


@pytest.mark.parametrize("scheduler", ["OneCycleLR", "CyclicLR"])
def test_a_schedule_that_cycles_momentum_is_told_before_it_is_applied(model, scheduler):
    options = {
        "OneCycleLR": {"max_lr": 0.1, "total_steps": 10},
        "CyclicLR": {"base_lr": 0.01, "max_lr": 0.1},
    }[scheduler]
    make = getattr(torch.optim.lr_scheduler, scheduler)
    for cycles in (True, False):
        optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
        with ddp.attach(model, dgc(), optimizer=optimizer):
            make(optimizer, cycle_momentum=cycles, **options)
            model(torch.ones(2, 64)).sum().backward()
            before = model.module.weight.detach().clone()
            if cycles:
                optimizer.param_groups[0]["momentum"] = 0.85
                with pytest.raises(ValueError, match=r"momentum is 0\.9.*cycle_momentum=False"):
                    optimizer.step()
                assert torch.equal(before, model.module.weight)
            else:
                optimizer.step()
                assert not torch.equal(before, model.module.weight)
            optimizer.zero_grad()


def test_adamw_may_cycle_its_first_moment(model):
    optimizer = AdamW(model.parameters(), lr=0.1)
    with ddp.attach(model, gradwire.adam(), optimizer=optimizer):
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 64)).sum().backward()
            optimizer.step()
            schedule.step()
        assert optimizer.param_groups[0]["betas"][0] != 0.9
        optimizer.param_groups[0]["betas"] = (0.9, 0.95)
        with pytest.raises(ValueError, match=r"betas\[1\] is 0\.95"):
            optimizer.step()


def test_momentum_that_torchs_optimizer_gets_later_is_told_once(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        ddp.attach(model, topk(), optimizer=optimizer),
        warnings.catch_warnings(record=True) as all,
    ):
        warnings.simplefilter("always")
        for step in range(4):
            optimizer.zero_grad()
            model(torch.ones(2, 64)).sum().backward()
            optimizer.step()
            optimizer.param_groups[0]["momentum"] = 0.9 - 0.1 * step
    assert ["has momentum" in str(each.message) for each in all] == [True]
    assert all[0].filename == __file__


@pytest.mark.parametrize("codec", [gradwire.adam, topk, gradwire.qsgd])
def test_parameters_that_the_optimizer_does_not_have_are_told(model, codec):
    text = told(model, codec(), AdamW([model.module.bias]))
    assert "1 parameters, 'weight', are not in any group of optimizer=, which will not" in text
    assert ("no other optimizer can" in text) == (codec is gradwire.adam)
    model.module.weight.requires_grad_(False)
    assert "not in any group" not in told(model, codec(), AdamW([model.module.bias]))
    model.module.weight.requires_grad_(True)


@pytest.mark.parametrize("codec", [gradwire.adam, topk, gradwire.qsgd, "auto"])
def test_an_optimizer_of_another_model_is_refused(model, codec):
    other = AdamW(torch.nn.Linear(64, 64).parameters())
    given = codec if codec == "auto" else codec()
    threads = threading.active_count()
    with pytest.raises(ValueError, match="none of the 2 parameters of the model, such as"):
        ddp.attach(model, given, optimizer=other)
    assert threading.active_count() == threads
    assert not adapted(other)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("adam", r"torch\.optim\.AdamW\(model"),
        (torch.optim.SGD, r"torch\.optim\.AdamW\(model"),
        (SimpleNamespace(optimizer=SGD([torch.zeros(1)])), r"pass the optimizer inside it, \.opt"),
    ],
    ids=["name", "class", "wrapped"],
)
def test_what_is_no_optimizer_is_refused(model, given, said):
    with pytest.raises(TypeError, match=said):
        ddp.attach(model, gradwire.topk(0.01), optimizer=given)


def test_a_model_may_be_copied_and_saved_while_it_is_attached(model):
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    with ddp.attach(model, dgc(), optimizer=optimizer):
        model(torch.ones(2, 64)).sum().backward()
        optimizer.step()
        copied = copy.deepcopy(model.module)
        torch.save(model.module, io.BytesIO())
        assert not copied.weight._backward_hooks
        assert not copied.weight._post_accumulate_grad_hooks
        assert not adapted(copy.deepcopy(optimizer))


def test_gradients_that_are_only_computed_are_not_added(model):
    optimizer = AdamW(model.parameters())
    with ddp.attach(model, gradwire.adam(), optimizer=optimizer):
        model(torch.ones(2, 64)).sum().backward()
        torch.autograd.grad(model.module(torch.ones(2, 64)).sum(), [model.module.weight])
        optimizer.step()


def test_each_parameter_is_judged_by_its_own_codec_and_group(group):
    layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    first, bias, second, other = model.parameters()
    codecs = {"0.*": gradwire.float8(), "1.*": gradwire.adam()}
    text = told(model, codecs, AdamW([bias, second, other]))
    assert "'0.weight', are not in any group" in text
    assert "another optimizer can" in text
    assert "no other optimizer can" not in text
    text = told(model, codecs, AdamW([first, bias, other]))
    assert "'1.weight', are not in any group" in text
    assert "no other optimizer can" in text
    assert "give them a codec by name" in text
    groups = [{"params": [first]}, {"params": [second, bias, other], "momentum": 0.9}]
    assert not told(model, {"0.*": topk(), "1.*": gradwire.qsgd()}, SGD(groups, lr=0.1))
    assert "has momentum" in told(model, {"1.*": topk(), "0.*": gradwire.qsgd()}, SGD(groups, 0.1))
    for pair in ([gradwire.qsgd(), topk()], [topk(), gradwire.qsgd()]):
        assert "no optimizer=" in told(model, dict(zip(["0.*", "1.*"], pair, strict=True)))
