"""The suite of devices without one: over copies, and by kernels that are emulated."""

import contextlib
import re
import time
import warnings
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire.exchange import QuantizedAllReduce, ReduceScatter
from gradwire.torch import backends
from gradwire.torch.backends import cuda, dispatch, host, staging
from gradwire.torch.backends.cuda import encoding, operators, trial
from gradwire.torch.backends.cuda.trial import cases
from gradwire.torch.ddp import ExchangeError
from gradwire.torch.engine import consensus
from gradwire.torch.transport.process_group import ProcessGroups
from tests.csrc.emulated.build import build
from tests.distributed.device_suite import CODECS, DeviceSuite, crossed, given, gradients
from tests.distributed.ranks import Ranks, alike
from tests.distributed.scenarios.common import Given, attached, integers, plain


def alone(rank):
    """Make groups of this rank and of all while ranks are bound to devices, and exchange.

    Of a group that torch makes with ranks bound, it asks all of them.
    """
    world = dist.group.WORLD
    part = dist.new_group([rank], backend="carrier", use_local_synchronization=True)
    made, tensors = [], [torch.zeros(3)]
    new_group = dist.new_group

    def recorded(*given, **options):
        made.append((len(given[0]), str(world.bound_device_id), options["backend"]))
        return new_group(*given, **options)

    world.bound_device_id = torch.device("cpu", 0)
    transports = [ProcessGroups(part, None), ProcessGroups(world, None)]
    try:
        with patch.object(dist, "new_group", recorded):
            for transport in transports:
                carriers = transport.device_backends(tensors)
                channel = transport.make(carriers)
                transport.connect(channel, carriers, tensors)
        assert str(world.bound_device_id) == "cpu:0"
    finally:
        world.bound_device_id = None
        for transport in transports:
            transport.leave()
    assert made == [(1, "None", "cpu:carrier"), (2, "cpu:0", "cpu:carrier")]


class Tried:
    """What encodes tensors on the CPU: emulated kernels, if they pass the trial, else the host."""

    def __getattr__(self, name):
        return getattr(cuda if dispatch._kernels(torch.device("cpu"))[0] else host, name)


def in_use(device):
    taken, why = dispatch._kernels(device)
    return backends.BackendInUse("cuda" if taken else "host", why)


@contextlib.contextmanager
def first_use():
    """Have the CPU stand for a device that was not used so far, in this block."""
    few = [each._replace(numel=min(each.numel, 300)) for each in cases()[:4]]
    with contextlib.ExitStack() as stack:
        for put in (
            patch.object(dispatch, "_IN_PLACE", Tried()),
            patch.object(backends, "in_use", in_use),
            patch.object(dispatch, "_extension", lambda: (True, "emulated")),
            *(patch.object(dispatch, each, {}) for each in ("_choices", "_hangs")),
            patch.object(dispatch, "_warned", set()),
            patch.object(consensus, "_with_kernels", set()),
            patch.object(trial, "cases", lambda: few),
            patch.object(trial, "PATIENCE", 600.0),
        ):
            stack.enter_context(put)
        yield


def disagreeing(rank, fault):
    """Attach with kernels that go wrong on rank 1 alone."""
    real, found = encoding.decode, {}

    def wrong(out, *given):
        done = real(out, *given)
        out[-1] += 1
        return done

    def hangs(*given):
        time.sleep(3)
        return real(*given)

    faults = {"a wrong byte": wrong, "a hang": hangs}
    with (
        first_use(),
        warnings.catch_warnings(record=True) as caught,
        contextlib.ExitStack() as stack,
    ):
        warnings.simplefilter("always")
        if rank == 1:
            stack.enter_context(patch.object(encoding, "decode", faults.get(fault, real)))
            if fault == "a hang":
                stack.enter_context(patch.object(trial, "PATIENCE", 1.0))
            if fault == "no extension":
                missing = (False, "the extension is not installed")
                stack.enter_context(patch.object(dispatch, "_extension", lambda: missing))
        module = Given()
        try:
            with attached(module, gradwire.topk(ratio=0.1)) as (model, handle):
                model(integers(3, rank, 0)).backward()
                found["by"] = (
                    backends.backend_for(*module.parameters()).name,
                    handle.report().carried_by,
                )
                found["why"] = dispatch._kernels(torch.device("cpu"))[1]
                alike(gradients(module))
        except RuntimeError as error:
            found["error"] = f"{type(error).__name__}: {error}"
    said = [str(each.message) for each in caught if each.category is RuntimeWarning]
    return found | {"said": said}


class Failing:
    """Operators of which one raises, as where the device is lost."""

    def __init__(self, name):
        self._name, self._real = name, operators.operators()

    def __getattr__(self, name):
        return self._fail if name == self._name else getattr(self._real, name)

    def _fail(self, *given):
        raise RuntimeError("CUDA error: unspecified launch failure\nand what torch says of it")


def lost(rank):
    """Train until the device of rank 1 is lost in a step: one error, and all is as before it."""
    text = (
        "rank 1 could not encode: DeviceError: cpu is lost to this process (CUDA error: "
        "unspecified launch failure): nothing can be copied from it or to it any more. "
        "End the process, and restart from a checkpoint"
    )
    with attached(Given(), CODECS["gather"]) as (model, handle), contextlib.ExitStack() as stack:
        for step in range(2):
            model.zero_grad()
            model(integers(3, rank, step)).backward()
        before = plain(handle.state_dict())
        if rank == 1:
            planted = patch.object(torch.ops, "planted", Failing("encode_bucket"), create=True)
            stack.enter_context(planted)
            stack.enter_context(patch.object(operators, "_library", "planted"))
            stack.enter_context(patch.object(staging, "is_lost", lambda device: True))
        for said in (text, f"gradwire stopped after an earlier error: {text}"):
            model.zero_grad()
            with pytest.raises(ExchangeError, match=f"^{re.escape(said)}$"):
                model(integers(3, rank, 2)).backward()
        stack.pop_all().close()
        assert before == plain(handle.state_dict())
        assert handle.step == 2


def told(kernels, words):
    """Attach twice to tensors of a device with kernels, or without: it is said once."""
    channel = ProcessGroups(dist.group.WORLD, None).make()
    with (
        patch.object(dispatch, "_warned", set()),
        patch.object(consensus, "_with_kernels", set()),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        for _ in range(2):
            found = consensus.Devices([torch.empty(3, device="meta"), torch.empty(3)])
            if kernels:
                in_use = backends.BackendInUse("cuda", "it is one")
                found._found[torch.device("meta")] = in_use
            found.agree(channel)
            found.warn_of_copies({"meta": "nccl"})
            found.warn_of_copies({})
    (said,) = caught
    assert said.category is RuntimeWarning
    assert all(each in str(said.message) for each in words), said


class TestStaged(DeviceSuite):
    """Tensors on the CPU that are copied before they are encoded."""

    device = "cpu"
    module = "gradwire.torch.backends.host"

    @pytest.fixture
    def there(self, kept):
        """Two ranks that copy."""
        return kept(2, "host")


@pytest.mark.full
class TestKernels(DeviceSuite):
    """Tensors on the CPU that the kernels of the CUDA backend encode, and Gloo sends.

    In the quick tier, `TestCarried` has the kernels and `TestStaged` has copies for Gloo.
    """

    device = "cpu"
    module = "gradwire.torch.backends.cuda.buckets"

    @pytest.fixture
    def there(self, kept):
        """Two ranks over the emulated kernels."""
        build()  # before the ranks, which have no time for it
        return kept(2, "cuda")

    def test_a_device_that_is_lost_is_one_error_on_all_ranks(self, there):
        there.run(lost)


class TestCarried(DeviceSuite):
    """The same, with frames that stay where tensors are."""

    device = "cpu"
    module = "gradwire.torch.backends.cuda.buckets"
    carried_by = "carrier"

    @pytest.fixture
    def there(self, kept):
        """Two ranks with a backend that stands for NCCL."""
        return kept(2, "carried")

    @pytest.mark.parametrize("exchange", ["gather", "dense"])
    def test_no_frame_and_no_value_goes_by_the_host(self, there, exchange):
        for found in there.run(crossed, device="cpu", codec=CODECS[exchange]):
            # A row of ten numbers per parameter, a kilobyte per slot, and flags. Kernels write the
            # slots that are gathered.
            assert found["up"] <= (0 if exchange == "gather" else 1100)
            assert 0 < found["down"] <= 2 * 1024 + 600
            assert found["wire"] > 3000, "there is more than that to send"

    @pytest.mark.parametrize(
        "codecs",
        [
            [gradwire.topk(ratio, exchange=ReduceScatter()) for ratio in (0.05, 0.4)],
            [gradwire.qsgd(bits=bits, exchange=QuantizedAllReduce()) for bits in (2, 8)],
        ],
        ids=["ReduceScatter", "QuantizedAllReduce"],
    )
    def test_as_much_goes_by_the_host_however_much_owners_are_sent(self, there, codecs):
        runs = [there.run(crossed, device="cpu", codec=codec) for codec in codecs]
        for few, many in zip(*runs, strict=True):
            assert many["wire"] > 2 * few["wire"]
            assert (many["down"], many["up"]) == (few["down"], few["up"])

    @pytest.mark.full
    @pytest.mark.parametrize(
        ("codec", "exchange"),
        [(gradwire.topk(0.01), ReduceScatter()), (gradwire.onebit(), QuantizedAllReduce())],
        ids=["topk", "onebit"],
    )
    def test_eight_ranks_have_owners_as_on_the_cpu(self, nursery, codec, exchange):
        runs = []
        for backend, transport in (("cpu", "gloo"), ("cuda", "carrier")):
            ranks = Ranks(nursery, 8, backend=backend, transport=transport)
            runs.append(ranks.run(given, device="cpu", codec=codec, ddp={}))
            ranks.stop()
        for expected, found in zip(*runs, strict=True):
            assert found["exchange"] == repr(exchange)
            assert found["carried_by"] == "carrier"
            assert found["averages"] == expected["averages"]
            assert found["state"] == expected["state"]

    def test_a_part_of_ranks_that_are_bound_to_devices_connects_by_itself(self, there):
        there.run(alone)

    def test_a_device_that_is_lost_is_one_error_on_all_ranks(self, there):
        there.run(lost)

    @pytest.mark.parametrize(
        ("fault", "words"),
        [
            ("a wrong byte", "kernels on cpu have failed their trial (another average in"),
            ("no extension", "the extension is not installed"),
        ],
    )
    def test_all_ranks_go_by_the_host_where_one_has_to(self, there, fault, words):
        one, other = there.run(disagreeing, fault=fault)
        for found in (one, other):
            assert found["by"] == ("host", "gloo")
            assert words in found["why"]
        assert one["why"].startswith("as on rank 1, where ")
        assert one["said"] == []
        if fault == "a wrong byte":
            (said,) = other["said"]
            assert "step 3, float32" in said
            assert "Please report" in said

    def test_ranks_whose_kernels_are_right_use_them(self, there):
        for found in there.run(disagreeing, fault="none"):
            assert found["by"] == ("cuda", "carrier")
            assert found["said"] == []

    def test_no_rank_waits_for_one_whose_kernels_hang(self, there):
        one, other = there.run(disagreeing, fault="a hang")
        assert other["error"].startswith("ExtensionError: cpu hangs: ")
        assert one["error"].startswith("ExtensionError: rank 1 cannot attach: cpu hangs: ")

    @pytest.mark.parametrize(
        ("kernels", "words"),
        [
            (False, ["on meta are encoded on the CPU in every step: gradwire has no backend for"]),
            (True, ["on meta are copied to the CPU and sent over Gloo: the model's process group"]),
        ],
        ids=["a device without kernels", "frames that go over Gloo all the same"],
    )
    def test_what_costs_copies_is_said_once(self, there, kernels, words):
        there.run(told, kernels=kernels, words=words)


class TestWithoutKernels:
    """Tensors on the CPU that are copied to be encoded, and values that stay where they are."""

    def test_a_node_adds_up_where_gradients_are_and_copies_its_shares(self, kept):
        options = {"device": "cpu", "codec": CODECS["gather"], "hierarchy": 2}
        expected = kept(4, "cpu").run(crossed, **options)
        found = kept(4, "values").run(crossed, **options)
        numel = 64 * 40 + 50 * 30 + 40 + 1200 + 1
        for one, other in zip(found, expected, strict=True):
            assert other["carried_by"] == "gloo"
            assert one["carried_by"] == "gloo between nodes, carrier inside"
            assert (one["averages"], one["state"]) == (other["averages"], other["state"])
            assert 0 < one["down"] < 0.6 * 4 * numel, "the mean of one share, and flags"
            assert 0 < one["up"] < 0.6 * 4 * numel
