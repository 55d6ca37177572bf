"""Followers end where the publisher is, whatever happens to the folder, to them and to it."""

import contextlib
import errno
import itertools
import json
import os
import shutil
import signal
import sys

import numpy as np
import pytest

from gradwire import delta, weights
from gradwire.delta import Follower, Publisher
from gradwire.delta.folder import Folder
from gradwire.errors import (
    BaseMismatchError,
    CorruptFileError,
    CorruptFrameError,
    StateInUseError,
)


def model(step, part=0):
    """The weights of a step, which differ in few entries from those of the step before."""
    draw = np.random.default_rng(part)
    new = {f"{part}.{name}": draw.standard_normal(n, np.float32) for name, n in SIZES.items()}
    for i, each in enumerate(new.values()):
        each[i::7] += np.float32(step) / 64
    return new


SIZES = {"a": 5000, "b": 3, "c": 0, "d": 700}


def zeros(*parts):
    whole = {}
    for part in parts or [0]:
        whole |= model(0, part)
    return {name: np.zeros_like(each) for name, each in whole.items()}


def at(follower, weights, step, *parts):
    """Pull, and see that the weights are those of a step."""
    assert follower.pull(weights) == step == follower.step
    whole = {}
    for part in parts or [0]:
        whole |= model(step, part)
    return delta.digest(weights) == delta.digest(whole)


def test_followers_get_every_version_by_patches_or_start_at_an_anchor(tmp_path):
    early, mine = Follower(tmp_path), zeros()
    with pytest.raises(TimeoutError, match="no complete version"):
        early.pull(mine, timeout=0.15)
    with Publisher(tmp_path / "new" / "run", anchor_every=4, keep=2) as publisher:
        early = Follower(publisher._store)
        for step in range(0, 60, 3):
            version = publisher.push(step, model(step))
            assert version.digest == delta.digest(model(step))
            assert version.anchor == (step % 12 == 0)
            assert (0 < version.patch < 4000) == (step > 0)
            if step % 9 == 0:
                assert at(early, mine, step)
            late = Follower(publisher._store)
            blank = late.blank()
            assert at(late, blank, step)
        lagging, old = Follower(tmp_path / "new" / "run"), zeros()
        assert at(lagging, old, 57)
        anchors = [each for each in os.listdir(tmp_path / "new" / "run") if "safetensors" in each]
        assert len(anchors) == 2
        assert early.pull(mine) == 57
        assert early.pull(mine, timeout=0.05) == 57
        for step in range(60, 120):
            publisher.push(step, model(step))
        assert at(lagging, old, 119)  # behind the oldest patch
        anchor = weights.open(next((tmp_path / "new" / "run").glob("*.safetensors")))
        assert {*anchor} == {*mine}


def test_a_follower_that_is_on_the_chain_reads_no_anchor(tmp_path):
    publisher, follower, mine = Publisher(tmp_path, anchor_every=3), Follower(tmp_path), zeros()
    publisher.push(0, model(0))
    assert at(follower, mine, 0)
    for step in range(1, 4):
        publisher.push(step, model(step))
    for anchor in tmp_path.glob("*.safetensors"):
        anchor.unlink()
    assert at(follower, mine, 3)


def test_a_restarted_trainer_begins_with_an_anchor_and_the_old_one_is_refused(tmp_path):
    old, follower, mine = Publisher(tmp_path), Follower(tmp_path), zeros()
    for step in (5, 6):
        old.push(step, model(step))
    assert at(follower, mine, 6)
    with pytest.raises(StateInUseError, match="another publisher"):
        Publisher(tmp_path)
    old.close()
    new = Publisher(tmp_path)
    assert new.push(2, model(2)).anchor
    assert at(follower, mine, 2)
    with pytest.raises(StateInUseError, match="has taken"):
        old.push(7, model(7))
    assert not new.push(3, model(3)).anchor
    assert at(follower, mine, 3)
    new.close()
    with pytest.raises(StateInUseError, match="has been there"):
        Publisher(tmp_path, run=new._run)


def test_a_version_is_visible_when_all_parts_are_there(tmp_path):
    first, second = (
        Publisher(tmp_path, part=part, parts=2, run="one", anchor_every=3) for part in (0, 1)
    )
    follower, mine, half, shard = Follower(tmp_path), zeros(0, 1), Follower(tmp_path, 1), zeros(1)
    first.push(0, model(0))
    for each, theirs in ((follower, mine), (half, shard)):
        with pytest.raises(TimeoutError):
            each.pull(theirs)
    second.push(0, model(0, 1))
    assert at(follower, mine, 0, 0, 1)
    assert at(half, shard, 0, 1)
    for step in range(1, 9):
        first.push(step, model(step))
        assert at(follower, mine, max(step - 1, 0) if step != 5 else 3, 0, 1)
        if step != 4:  # this part failed, and its anchors come later from now on
            second.push(step, model(step, 1))
            assert at(follower, mine, step, 0, 1)
            late = Follower(tmp_path)
            assert at(late, zeros(0, 1), step, 0, 1)
    assert at(half, shard, 8, 1)
    with pytest.raises(ValueError, match="not in both"):
        Follower(tmp_path).pull(zeros(0))


def test_of_two_parts_none_is_applied_if_one_cannot_be(tmp_path):
    publishers = [Publisher(tmp_path, part=part, parts=2, run="one") for part in (0, 1)]
    follower, mine = Follower(tmp_path), zeros(0, 1)
    for step in (0, 1):
        for part, publisher in enumerate(publishers):
            publisher.push(step, model(step, part))
        if step == 0:
            assert at(follower, mine, 0, 0, 1)
    patch = tmp_path / "part-1-one-1.gwdl"
    whole = patch.read_bytes()
    patch.write_bytes(whole[:-1] + b"?")
    with pytest.raises(CorruptFrameError):
        follower.pull(mine, timeout=0.2)
    assert delta.digest(mine) == delta.digest(model(0) | model(0, 1))
    patch.write_bytes(whole)
    assert at(follower, mine, 1, 0, 1)


@pytest.mark.parametrize("kind", ["missing", "short", "empty", "flipped"])
def test_a_bad_patch_waits_for_the_whole_one_or_for_the_next_anchor(tmp_path, kind):
    publisher, follower, mine = Publisher(tmp_path, anchor_every=3), Follower(tmp_path), zeros()
    publisher.push(0, model(0))
    assert at(follower, mine, 0)
    patch = tmp_path / publisher.push(1, model(1)).name(0, "gwdl")
    data = patch.read_bytes()
    bad = {"short": data[:-9], "empty": b"", "flipped": b"!".join([data[:40], data[41:]])}
    patch.unlink() if kind == "missing" else patch.write_bytes(bad[kind])
    if kind == "missing":
        assert follower.pull(mine, timeout=0.15) == 0
    else:
        with pytest.raises(CorruptFrameError):
            follower.pull(mine)
    assert delta.digest(mine) == delta.digest(model(0))
    publisher.push(2, model(2))
    assert publisher.push(3, model(3)).anchor
    assert at(follower, mine, 3)
    publisher.push(4, model(4))
    patch = tmp_path / publisher.push(5, model(5)).name(0, "gwdl")
    data = patch.read_bytes()
    patch.write_bytes(data[:-1])
    assert at(follower, mine, 4)  # as far as there are patches
    patch.write_bytes(data)
    assert at(follower, mine, 5)


@pytest.mark.parametrize("kind", ["missing", "cut", "flipped", "plain"])
def test_a_bad_anchor_changes_nothing(tmp_path, kind):
    publisher, mine = Publisher(tmp_path), zeros()
    whole = model(0)
    if kind == "plain":  # integers are not coded, and have no checksum in the file
        whole, mine = {"n": np.arange(900)}, {"n": np.zeros(900, int)}
    path = tmp_path / publisher.push(0, whole).name(0, "safetensors")
    data = bytearray(path.read_bytes())
    data[-900] ^= 4
    path.write_bytes(data[:-3] if kind == "cut" else data)
    if kind == "missing":
        path.unlink()
    with pytest.raises(TimeoutError if kind == "missing" else CorruptFileError):
        Follower(tmp_path).pull(mine)
    assert not any(each.any() for each in mine.values())


NO_MANIFESTS = ["", "{", "[]", "null", '{"version": 2}', '{"version": 1}', "[" * 9999, b"\xff"]
NO_VERSIONS = [
    *(3, [3], [{"run": "x"}], None),
    *({"run": run} for run in ("../x", "", "a/b", 7, "x" * 65)),
    *({"step": "1"}, {"step": 1.5}, {"patch": None}, {"digest": None}, {"anchor": "no"}),
    *({"base": 1}, {"more": 1}),
]


@pytest.mark.parametrize("number", range(len(NO_MANIFESTS + NO_VERSIONS)))
def test_a_damaged_manifest_is_an_error(tmp_path, number):
    with Publisher(tmp_path) as publisher:
        publisher.push(0, model(0))
    manifest = tmp_path / "part-0.json"
    text = [*NO_MANIFESTS, *NO_VERSIONS][number]
    if number >= len(NO_MANIFESTS):
        fields = json.loads(manifest.read_text())
        (version,) = fields["versions"]
        fields["versions"] = [version | text] if isinstance(text, dict) else text
        text = json.dumps(fields)
    manifest.write_bytes(text if isinstance(text, bytes) else text.encode())
    for reader in (lambda: Follower(tmp_path).pull(zeros()), lambda: Publisher(tmp_path)):
        with pytest.raises(CorruptFileError):
            reader()


def test_a_model_that_somebody_changed_is_refused(tmp_path):
    publisher, follower, mine = Publisher(tmp_path), Follower(tmp_path), zeros()
    publisher.push(0, model(0))
    assert at(follower, mine, 0)
    publisher.push(1, model(1))
    mine["0.a"][0] += 1
    with pytest.raises(BaseMismatchError):
        follower.pull(mine)
    mine["0.a"][0] -= 1
    mine["0.a"][:] = model(0)["0.a"]
    assert at(follower, mine, 1)


class Failing(Folder):
    """A folder whose disk is full, before, in the middle of or after the n-th file."""

    left = 0

    def put(self, name, write):
        self.left -= 1
        if self.left == 0 and self.when == "before":
            raise OSError(errno.ENOSPC, "full", name)
        super().put(name, write)
        if self.left == 0:
            raise OSError(errno.EIO, "after", name)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_push_that_fails_is_made_up_for_by_the_next_one(tmp_path, when, nth):
    store = Failing(tmp_path)
    store.when = when
    publisher, follower, mine = Publisher(store, anchor_every=2), Follower(store), zeros()
    for step in range(4):
        publisher.push(step, model(step))
    assert at(follower, mine, 3)
    store.left = nth
    with pytest.raises(OSError, match=r"full|after"):  # of a patch, an anchor and the manifest
        publisher.push(4, model(4))
    now = follower.pull(mine)
    assert now == (4 if (when, nth) == ("after", 3) else 3)
    assert delta.digest(mine) == delta.digest(model(now))
    for step in (5, 6, 7):
        publisher.push(step, model(step))
        assert at(follower, mine, step)
        assert at(Follower(store), zeros(), step)
    for step in range(8, 12):
        publisher.push(step, model(step))
    names = " ".join(each for each in os.listdir(tmp_path) if each.startswith("part-0-"))
    assert not [old for old in range(6) if f"-{old}." in names]


def test_a_folder_that_vanishes_or_is_read_only_is_an_error(tmp_path):
    publisher, follower, mine = Publisher(tmp_path / "x"), Follower(tmp_path / "x"), zeros()
    publisher.push(0, model(0))
    assert at(follower, mine, 0)
    shutil.move(tmp_path / "x", tmp_path / "y")
    with pytest.raises((OSError, StateInUseError)):
        publisher.push(1, model(1))
    assert follower.pull(mine) == 0
    shutil.move(tmp_path / "y", tmp_path / "x")
    publisher.push(2, model(2))
    assert at(follower, mine, 2)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        Publisher(tmp_path / "file")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"anchor_every": 0}, ValueError),
        ({"keep": 1}, ValueError),
        ({"part": 1}, ValueError),
        ({"parts": 2}, ValueError),
        ({"run": "a/b"}, ValueError),
        ({"keep": 2.5}, TypeError),
    ],
)
def test_options_are_checked(tmp_path, options, error):
    with pytest.raises(error):
        Publisher(tmp_path, **options)


def test_steps_grow_and_models_stay_alike(tmp_path):
    publisher = Publisher(tmp_path)
    publisher.push(3, model(3))
    for step, error in ((3, ValueError), (2, ValueError), (-1, ValueError), ("4", TypeError)):
        with pytest.raises(error):
            publisher.push(step, model(4))
    with pytest.raises(ValueError, match="not in both"):
        publisher.push(4, model(4, part=1))
    assert not publisher.push(4, model(4)).anchor


def test_other_stores_need_the_four_methods(tmp_path):
    files = {}

    class Bucket:
        def put(self, name, write):
            write(tmp_path / "scratch")
            files[name] = (tmp_path / "scratch").read_bytes()

        def get(self, name):
            if name not in files:
                raise FileNotFoundError(name)
            path = tmp_path / f"downloaded-{len(os.listdir(tmp_path))}"
            path.write_bytes(files[name])
            return path

        def names(self):
            return [*files]

        def remove(self, name):
            del files[name]

    publisher, follower, mine = Publisher(Bucket(), anchor_every=2), Follower(Bucket()), zeros()
    for step in range(9):
        publisher.push(step, model(step))
        if step % 2:
            assert at(follower, mine, step)
    assert len(files) < 9


@pytest.mark.parametrize("stride", [17, pytest.param(1, marks=pytest.mark.full)])
def test_an_interrupt_at_any_line_of_a_pull_leaves_a_whole_version(tmp_path, stride):
    publisher = Publisher(tmp_path)
    for step in range(4):
        publisher.push(step, model(step))
    digests = {delta.digest(each) for each in (zeros(), *map(model, range(4)))}
    for line in itertools.count(1, stride):
        follower, mine, left = Follower(tmp_path), zeros(), [line]

        def trace(frame, event, _, left=left):
            left[0] -= event == "line"
            if event == "line" and left[0] == 0:
                raise KeyboardInterrupt
            return trace if "gradwire" in frame.f_code.co_filename else None

        sys.settrace(trace)
        with contextlib.suppress(KeyboardInterrupt):
            follower.pull(mine)
        sys.settrace(None)
        assert delta.digest(mine) in digests
        assert follower.pull(mine) == 3
        assert delta.digest(mine) == delta.digest(model(3))
        if left[0] > 0:
            break
    assert line > 500


def in_child(work, line):
    """Run in a process that kills itself at the n-th line of the package that it comes to."""
    if (child := os.fork()) == 0:
        left = [line]

        def trace(frame, event, _):
            if event == "line":
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            name = frame.f_code.co_filename
            return trace if "gradwire" in name and "_native" not in name else None

        try:
            sys.settrace(trace)
            work()
        finally:
            os._exit(left[0] % 250)
    return os.waitpid(child, 0)[1]


@pytest.mark.parametrize("kills", [10, pytest.param(200, marks=pytest.mark.full)])
@pytest.mark.skipif(sys.platform == "win32", reason="it needs fork")
def test_a_publisher_or_follower_may_be_killed_at_any_line(tmp_path, kills):
    draw, alive, mine, step = np.random.default_rng(kills), Follower(tmp_path), zeros(), 0
    killed = 0

    def publish():
        with Publisher(tmp_path, anchor_every=2) as publisher:
            for more in range(6):
                publisher.push(step + more, model(step + more))

    def follow():
        Follower(tmp_path).pull(zeros())

    publish()
    while killed < kills:
        step += 6
        work, most = (publish, 6000) if draw.random() < 0.8 else (follow, 1500)
        end = in_child(work, int(draw.integers(most)) + 1)
        killed += os.WIFSIGNALED(end)
        for follower, target in ((alive, mine), (Follower(tmp_path), zeros())):
            now = follower.pull(target)
            assert delta.digest(target) == delta.digest(model(now))
    step += 6
    publish()
    assert at(alive, mine, step + 5)
    assert not [each for each in os.listdir(tmp_path) if each.startswith(".gradwire")]
    assert len(os.listdir(tmp_path)) < 12
