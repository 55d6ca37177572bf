"""Operators of `torch.ops.gradwire`: what torch demands of them, and that they decode."""

import numpy as np
import pytest
import torch

import gradwire
import gradwire.torch
from gradwire.memory import NoMemory

N = 500


@pytest.fixture
def frame():
    x = np.random.default_rng(0).standard_normal(N).astype(np.float32)
    encoded = gradwire.topk(0.1, memory=NoMemory()).encode(x)
    return torch.frombuffer(bytearray(encoded), dtype=torch.uint8)


def arguments(name, frame):
    out = torch.linspace(-1, 1, N)
    return {"decode": (frame, N), "decode_": (out, frame), "decode_add_": (out, frame, 0.5)}[name]


@pytest.mark.parametrize("name", ["decode", "decode_", "decode_add_"])
def test_opcheck(name, frame):
    """Schema, autograd registration, fake tensors, and tracing with dynamic shapes."""
    report = torch.library.opcheck(
        getattr(torch.ops.gradwire, name).default, arguments(name, frame)
    )
    assert set(report.values()) == {"SUCCESS"}


def test_they_do_what_the_functions_do(frame):
    expected = gradwire.torch.decode(frame)
    assert torch.equal(torch.ops.gradwire.decode(frame, N), expected)
    out = torch.ones(N)
    torch.ops.gradwire.decode_(out, frame)
    assert torch.equal(out, expected)
    torch.ops.gradwire.decode_add_(out, frame, 0.5)
    assert torch.equal(out, expected + expected * 0.5)


def test_a_compiled_graph_holds_them(frame):
    def step(out, frame):
        torch.ops.gradwire.decode_add_(out, frame, 0.5)
        return out * 2 + torch.ops.gradwire.decode(frame, N)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    expected = step(torch.ones(N), frame)
    assert torch.equal(compiled(torch.ones(N), frame), expected)


def test_an_exported_program_holds_them(frame):
    class Decoder(torch.nn.Module):
        def forward(self, frame):
            return torch.ops.gradwire.decode(frame, N) + 1

    program = torch.export.export(Decoder(), (frame,))
    assert torch.equal(program.module()(frame), gradwire.torch.decode(frame) + 1)


def test_a_frame_of_another_length_than_the_graph_was_made_for_is_refused(frame):
    with pytest.raises(gradwire.FrameTooLargeError):
        torch.ops.gradwire.decode(frame, N - 1)
    with pytest.raises(gradwire.CorruptFrameError, match=f"expected {N + 1} elements, got {N}"):
        torch.ops.gradwire.decode(frame, N + 1)


def test_corrupt_frames_are_refused(frame):
    frame[50] ^= 1
    out = torch.ones(N)
    with pytest.raises(gradwire.CorruptFrameError):
        torch.ops.gradwire.decode_add_(out, frame, 1.0)
    assert (out == 1).all()


@pytest.mark.skipif(not hasattr(torch.Tag, "cudagraph_unsafe"), reason="torch has no such tag")
@pytest.mark.parametrize("name", ["decode", "decode_", "decode_add_"])
def test_compilers_are_told_that_no_cuda_graph_holds_them(name):
    assert torch.Tag.cudagraph_unsafe in getattr(torch.ops.gradwire, name).default.tags
