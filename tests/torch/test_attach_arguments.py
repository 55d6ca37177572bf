"""What `attach` says to those who hand it something else than a codec, and what it exports."""

import copy
import pickle
from datetime import timedelta
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

import gradwire
from gradwire.report import Report
from gradwire.torch import backends, ddp
from gradwire.torch.engine.step import BufferPool
from gradwire.torch.transport import process_group as groups


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (gradwire.topk, "gradwire.topk(ratio=0.01); got the function topk itself; call it"),
        (torch.optim.SGD([torch.zeros(1)], lr=0.1), "pass optimizer=SGD(...) by its name"),
        (0.01, "got the float 0.01"),
        (gradwire.sparsify.TopK(ratio=0.01), "gradwire.Codec(sparsify=..., "),
    ],
    ids=["function", "optimizer", "ratio", "part"],
)
def test_not_a_codec_is_a_type_error_that_says_what_to_pass(model, given, advice):
    with pytest.raises(TypeError, match=r"^attach\(\) takes a ") as caught:
        ddp.attach(model, given)
    assert advice in str(caught.value)
    ddp.attach(model, gradwire.topk(0.01)).detach()  # nothing was left on the model


@pytest.mark.parametrize(
    "write", [pickle.dumps, copy.deepcopy, copy.copy], ids=lambda f: f.__name__
)
def test_a_handle_is_saved_by_its_state_dict(model, write):
    with (
        ddp.attach(model, gradwire.topk(0.01)) as handle,
        pytest.raises(TypeError, match=r"cannot be saved or copied: save handle\.state_dict\(\)"),
    ):
        write(handle)


@pytest.mark.parametrize("timeout", [60, 0.5, "60s"])
def test_a_timeout_is_a_timedelta(model, timeout):
    told = r"timeout= must be a datetime\.timedelta, such as timedelta\(seconds=60\)"
    with pytest.raises(TypeError, match=told):
        ddp.attach(model, gradwire.topk(0.01), timeout=timeout)
    with pytest.raises(ValueError, match="timeout= must be positive"):
        ddp.attach(model, gradwire.topk(0.01), timeout=timedelta(0))
    with ddp.attach(model, gradwire.topk(0.01)) as handle:
        with pytest.raises(TypeError, match=told):
            handle.detach(timeout)
        assert handle.attached


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_patterns_with_the_prefix_of_a_wrapper_are_told_without_it(model, prefix):
    with pytest.raises(ValueError, match=r"wrapped or compiled, 'w\*'"):
        ddp.attach(model, {f"{prefix}w*": gradwire.topk(0.01)})


def test_the_optimizer_may_be_the_third_argument(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ddp.attach(model, gradwire.topk(0.01), optimizer) as handle:
        assert handle._options.optimizer is optimizer
    with pytest.raises(TypeError, match=r"optimizer= takes a torch\.optim\.Optimizer.*float 0\.01"):
        ddp.attach(model, gradwire.topk(0.01), 0.01)


def test_ranks_may_be_bound_to_devices(model, monkeypatch):
    # As by init_process_group(device_id=), after which torch looks for that device in every group.
    monkeypatch.setattr(torch.distributed.group.WORLD, "bound_device_id", torch.device("cuda", 0))
    handle = ddp.attach(model, gradwire.topk(0.01))
    model(torch.ones(2, 64)).sum().backward()
    assert handle.step == 1
    handle.detach()


def test_frames_stay_on_devices_of_a_kind_only_if_they_can_on_all(model, monkeypatch):
    monkeypatch.setattr(groups, "_BY_HOST", ())
    monkeypatch.setattr(
        backends, "backend_for", lambda each: SimpleNamespace(can_stay_on_device=each.numel() == 1)
    )
    made = groups.ProcessGroups(torch.distributed.group.WORLD, None)
    one, other = torch.zeros(1), torch.zeros(2)
    assert made.device_backends([one, one]) == {"cpu": "gloo"}
    assert made.device_backends([one, other]) == made.device_backends([other, one]) == {}


def test_ranks_are_connected_on_each_device_before_a_backward_pass_needs_them(model, monkeypatch):
    connected = []
    world = torch.distributed.group.WORLD
    made, tensors = groups.ProcessGroups(world, None), [torch.zeros(1), torch.zeros(2)]
    channel = groups.ProcessGroupChannel(world)
    all_reduce = channel.all_reduce

    def recorded(tensor):
        connected.append(tensor.device)
        return all_reduce(tensor)

    monkeypatch.setattr(channel, "all_reduce", recorded)
    made.connect(channel, {"cuda": "nccl"}, tensors)
    assert connected == []
    made.connect(channel, {"cpu": "carrier"}, tensors)
    assert connected == [torch.device("cpu")]
    monkeypatch.setattr(channel, "all_reduce", mock.Mock(side_effect=RuntimeError("no route")))
    with pytest.raises(ddp.ExchangeError, match="by carrier on cpu: no route"):
        made.connect(channel, {"cpu": "carrier"}, tensors)


@pytest.mark.parametrize(
    "codec", [gradwire.topk(0.01), gradwire.scalecom(0.01)], ids=["gathered", "summed"]
)
def test_a_detached_handle_holds_no_slots(model, codec):
    def held(exchange):
        found = [each for each in vars(exchange).values() if isinstance(each, BufferPool)]
        return [each.nbytes for each in found]

    handle = ddp.attach(model, codec)
    exchange = handle._engine.exchange
    model(torch.ones(2, 64)).sum().backward()
    assert any(held(exchange))
    handle.detach()
    assert held(exchange) == [0, 0]


def test_a_report_has_norms_unless_residuals_are_left_alone_and_their_memory(model):
    with ddp.attach(model, gradwire.topk(0.01), min_numel=65) as handle:
        model(torch.ones(2, 64)).sum().backward()
        report, without = handle.report(), handle.report(residuals=False)
    assert isinstance(report, Report)
    assert repr(report) == str(report)
    norms = [each.residual_norm or 0 for each in report.parameters]
    assert report.residual_norm == pytest.approx(np.linalg.norm(norms))
    assert report.residual_norm > 0
    assert without.residual_norm is None
    assert all(each.residual_norm is None for each in without.parameters)
    assert "residual norm   -" in str(without)
    sizes = {each.name: each.state_bytes for each in report.parameters}
    assert sizes == {"weight": 8 * 64 * 64, "bias": 0}
    assert report.state_bytes == 8 * 64 * 64
    assert "8 bytes per entry" in str(report)


def test_a_report_counts_what_a_schedule_measures(model):
    schedule = gradwire.schedule.Accordion(low=0.5, high=0.01)
    handle = ddp.attach(model, gradwire.topk(0.01), schedule=schedule, min_numel=65)
    assert handle.report().state_bytes == 12 * 64 * 64
    model(torch.ones(2, 64)).sum().backward()
    assert handle.report().state_bytes == 16 * 64 * 64  # and what undoes the last gradient
    handle.detach()


def test_a_schedule_measures_gradients_and_not_what_is_sent_of_them(model):
    codec = gradwire.topk(0.01)
    handle = ddp.attach(model, codec, schedule=gradwire.schedule.Accordion(codec, codec))
    given, expected = torch.randn(64, 64, generator=torch.Generator().manual_seed(1)), 0.0
    for step in range(2):
        model.zero_grad()
        inputs = given + step
        model(inputs).square().sum().backward()
        with torch.no_grad():
            own = 2 * model.module(inputs).T @ inputs
        expected = expected + own
        assert (model.module.weight.grad - own).abs().max() > 0.01 * own.abs().max()
    (measured,) = handle.state_dict()["rank0"]["measured"].values()
    torch.testing.assert_close(measured.view(64, 64), expected)
    handle.detach()


def test_metrics_are_the_figures_of_a_report_as_floats_and_copy_no_residual(model, monkeypatch):
    def copied(state):
        raise AssertionError("a copy")

    with ddp.attach(model, gradwire.topk(0.01)) as handle:
        model(torch.ones(2, 64)).sum().backward()
        monkeypatch.setattr(gradwire.State, "residual", property(copied), raising=False)
        report, metrics = handle.report(), handle.metrics(reset=True)
        assert metrics == {name: getattr(report, name) for name in metrics}
        assert all(isinstance(value, float) for value in metrics.values())
        assert {"steps", "wire_bytes", "compression", "achieved", "wait_ms"} <= metrics.keys()
        assert handle.metrics()["steps"] == 0.0


def test_the_default_device_and_dtype_of_the_program_do_not_matter(model):
    given = torch.ones(2, 64)
    with torch.device("meta"):
        torch.set_default_dtype(torch.float64)
        try:
            handle = ddp.attach(model, gradwire.topk(0.01))
            model(given).sum().backward()
            saved = handle.state_dict()
            handle.load_state_dict(saved)
            handle.load_state_dict(handle.gathered_state_dict())
            model(given).sum().backward()
            assert handle.step == 2
            handle.detach()
        finally:
            torch.set_default_dtype(torch.float32)
    (residual,) = saved["rank0"]["residual"].values()
    assert (residual.device.type, residual.dtype) == ("cpu", torch.float32)
