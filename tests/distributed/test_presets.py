"""Every preset trains in DDP: replicas stay equal, failures leave no trace, resuming is exact."""

import pytest

import gradwire
from gradwire.exchange import AllGather
from gradwire.memory import LowPass
from gradwire.presets import PRESETS
from tests.distributed.codecs import OWNED
from tests.distributed.ranks import on
from tests.distributed.test_conformance import keeps_promises
from tests.outside_parts import Dithered, Halves, Nested

OUTSIDE = {
    "values": gradwire.topk(ratio=0.05, quantize=Halves()),
    "dense": gradwire.dense(quantize=Dithered(), memory=LowPass(0.5)),
    "nested": gradwire.dense(quantize=Nested()),
    "senders": gradwire.topk(ratio=0.05, quantize=Halves(), exchange=AllGather(mean="senders")),
}


@pytest.mark.parametrize("name", PRESETS)
@on("two")
def test_every_preset_keeps_what_ddp_is_promised(rank, size, name):
    preset = PRESETS[name]
    codec = preset.build(**preset.example)
    keeps_promises(rank, size, codec, linked=not codec.memory.estimates)  # matrices only


@pytest.mark.parametrize("name", OUTSIDE)
@on("two")
def test_so_does_a_codec_with_parts_of_another_package(rank, size, name):
    keeps_promises(rank, size, OUTSIDE[name], linked=True)


@pytest.mark.full
@pytest.mark.parametrize("name", OWNED)
@on("ranks")
def test_so_does_all_that_owners_encode_again(rank, size, name):
    keeps_promises(rank, size, OWNED[name])
