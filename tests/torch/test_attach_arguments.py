"""What `attach` says to those who hand it something else than a codec, and what it exports."""

import pytest
import torch

import gradwire
from gradwire.torch import ddp
from gradwire.torch.ddp.report import Report


@pytest.fixture(scope="module")
def model():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (gradwire.topk, "gradwire.topk(ratio=0.01); got the function topk itself; call it"),
        ("topk", "gradwire.topk(ratio=0.01); got the str 'topk'"),
        ("zip", "gradwire.topk(ratio=0.01); got the str 'zip'"),
        (None, "got the NoneType None"),
        (0.01, "got the float 0.01"),
        (gradwire.sparsify.TopK(ratio=0.01), "gradwire.Codec(sparsify=..., "),
    ],
    ids=["function", "name", "other name", "none", "ratio", "part"],
)
def test_not_a_codec_is_a_type_error_that_says_what_to_pass(model, given, advice):
    with pytest.raises(TypeError, match=r"^attach\(\) takes a gradwire\.Codec, such as ") as caught:
        ddp.attach(model, given)
    assert advice in str(caught.value)
    ddp.attach(model, gradwire.topk(0.01)).detach()  # nothing was left on the model


def test_the_hook_is_not_public():
    assert not hasattr(ddp, "gradwire_hook")
    assert all("hook" not in name for name in ddp.__all__)


def test_a_report_shows_itself_as_text(model):
    handle = ddp.attach(model, gradwire.topk(0.01))
    model(torch.ones(2, 64)).sum().backward()
    report = handle.report()
    handle.detach()
    assert isinstance(report, Report)
    assert repr(report) == str(report)
    assert len(repr(report).splitlines()) > 5
