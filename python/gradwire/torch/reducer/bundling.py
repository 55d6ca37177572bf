"""Which parameters of a bucket are encoded together, and where they are then."""

import dataclasses
import itertools
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwire.torch.reducer import parameters as making
from gradwire.torch.reducer.bundle import Bundle, Tracked
from gradwire.torch.reducer.layout import Layout
from gradwire.torch.reducer.member import MemberState
from gradwire.torch.reducer.record import Parameter, Piece
from gradwire.torch.reducer.report import Integers, Outcomes, Rows, Tallies

__all__ = ["BundledLayout", "Bundler", "Kept", "kept"]

Names = tuple[str, ...]
Kept = Mapping[Names, tuple[Names, Tracked]]
"""By the names of the members: those of all compressed parameters of the bucket, and the rest."""


class Bundler:
    """Bundles the parameters of buckets, in the sending thread.

    Those of one bucket are together that have the same codec. With a memory that makes steps, they
    also need the same learning rate and the same number of gradients, of which a state has one. The
    ranks have these in common, and so the bundles.
    """

    def __init__(self) -> None:
        self._kept: dict[Names, tuple[Names, Tracked]] = {}
        self._buckets: list[Names] = []

    def of(self, layout: Layout) -> "BundledLayout":
        """Return the layout of the same bucket in which pieces are bundles."""
        kept = layout.bundled
        if not isinstance(kept, BundledLayout) or not self._holds(kept, layout):
            kept = layout.bundled = BundledLayout(layout, self._bundles(layout))
        return kept

    def _holds(self, kept: "BundledLayout", layout: Layout) -> bool:
        """Tell whether bundles are still what they would be if they were made now."""
        if not all(bundle.is_whole for bundle in kept.bundles):
            return False
        if any(each.codec.memory.updates for each in layout.compressed):
            divided = [list(map(_name, group)) for group, _ in self._divided(layout)]
            if divided != [list(map(_name, bundle.members)) for bundle in kept.bundles]:
                return False
            for bundle in kept.bundles:
                rate = bundle.members[0].state.learning_rate
                if rate is not None and bundle.state.learning_rate != rate:
                    bundle.state.learning_rate = rate
        return True

    def _bundles(self, layout: Layout) -> list[Bundle]:
        return [self._bundle(tuple(group), bucket) for group, bucket in self._divided(layout)]

    def _divided(self, layout: Layout) -> list[tuple[list[Parameter], Names]]:
        """Return the members of each bundle, with the names of those of its bucket."""
        found: list[tuple[list[Parameter], Names]] = []
        for bucket in self._buckets_of(layout):
            names = tuple(map(_name, bucket))
            alike: dict[Any, list[Parameter]] = {}
            for each in bucket:
                alike.setdefault(_kind(each), []).append(each)
            found += ((group, names) for group in alike.values())
        return found

    def _buckets_of(self, layout: Layout) -> list[list[Parameter]]:
        """Return the parameters of a bucket; of one that is to be divided, as they were before.

        A resumed run begins with all parameters in one bucket, and must not differ for that.
        """
        every = {each.name: each for each in layout.compressed}
        before = self._buckets if layout.provisional else []
        known = [names for names in before if every.keys() >= set(names)]
        found = [[every.pop(name) for name in names] for names in known]
        return [*found, list(every.values())] if every else found

    def _bundle(self, members: tuple[Parameter, ...], bucket: Names) -> Bundle:
        state = members[0].state
        old: Bundle | None = state.bundle
        if old is not None and old.members == members and old.is_whole:
            making.use(old, members[0].codec)
            old.bucket = bucket
            if state.learning_rate is not None:
                old.state.learning_rate = state.learning_rate
            return old
        names = tuple(map(_name, members))
        tracked = None
        # Kept until the members have joined, on every rank: a pass may fail on some before that.
        _, found = self._kept.get(names, (bucket, None))
        states = [each.state for each in members]
        if found is not None and all(each.is_apart and each.left is None for each in states):
            tracked = found
        elif state.left is not None and all(each.state.left is state.left for each in members):
            tracked = state.left.tracked() if state.left.members == members else None
        return Bundle(members, bucket, tracked)

    # Checkpoints ------------------------------------------------------------------------------

    def keep(self, kept: Kept) -> None:
        """Continue from what `kept` returned when a checkpoint was saved."""
        self._kept = dict(kept)
        self._buckets = list(dict.fromkeys(bucket for bucket, _ in kept.values()))


def kept(parameters: Iterable[Parameter]) -> Kept:
    """Return what bundles of the same members would continue from."""
    found = {}
    for each in parameters:
        state = each.state
        if not isinstance(state, MemberState):
            continue
        bundle: Bundle | None = state.bundle or state.left
        if bundle is None or bundle.members[0] is not each:
            continue
        if bundle.is_whole or all(one.state.left is bundle for one in bundle.members):
            found[tuple(map(_name, bundle.members))] = (bundle.bucket, bundle.tracked())
    return found


class BundledLayout(Layout):
    """A bucket whose pieces are bundles.

    Attributes
    ----------
    bundles : tuple of Bundle
    order : list of (int, int), or None
        Entries of the bucket, one run after another, that make the buffer in which every bundle is
        contiguous; None if the bucket itself is one.
    """

    __slots__ = ("bundles", "order")

    def __init__(self, layout: Layout, bundles: Sequence[Bundle]) -> None:
        of_name = {piece.parameter.name: piece for piece in layout.pieces}
        groups = [[of_name[each.name] for each in bundle.members] for bundle in bundles]
        self.order = None if all(map(_adjacent, groups)) else _order(groups, layout.runs)
        at = {id(each): each.start for each in (*layout.pieces, *layout.dense)}
        self.runs = layout.runs
        if self.order is not None:
            moved = [*itertools.chain(*groups), *layout.dense]
            numels = [each.stop - each.start for each in moved]
            starts = itertools.accumulate(numels[:-1], initial=0)
            at = {id(each): start for each, start in zip(moved, starts, strict=True)}
            compressed = layout.numel - layout.dense_numel
            self.runs = ((compressed, layout.numel),) if layout.runs else ()
        parts = [tuple(_moved(each, at) for each in group) for group in groups]
        self.pieces = tuple(
            Piece(bundle, part[0].start, part[-1].stop, part)
            for bundle, part in zip(bundles, parts, strict=True)
        )
        self.units = tuple(itertools.chain(*parts))
        self.dense = tuple(_moved(each, at) for each in layout.dense)
        self.dense_numel, self.numel = layout.dense_numel, layout.numel
        self.dtype, self.cut, self.sparse = layout.dtype, layout.cut, False
        self.bundled, self.provisional = None, False
        self.bundles = self.compressed = tuple(bundles)
        told = [[each.name for each in bundle.members] for bundle in bundles]
        self.digest = zlib.crc32(repr(told).encode(), layout.digest)
        self.ends = [end for piece in self.pieces for end in (piece.start, piece.stop)]
        row_of = dict(zip(of_name, layout.rows.tolist(), strict=True))
        self.tallies = _Shared(
            layout.tallies,
            [np.array([row_of[name] for name in names], np.intp) for names in told],
            [np.array([each.numel for each in bundle.members]) for bundle in bundles],
        )
        self.rows = np.arange(len(bundles), dtype=np.intp)
        self.dense_rows, self.dense_numels = layout.dense_rows, layout.dense_numels


class _Shared(Tallies):
    """Running sums of bundles, shared out among their members by the number of entries.

    Parameters
    ----------
    tallies : Tallies
        Of all parameters.
    rows : sequence of numpy.ndarray
        The rows of each bundle's members.
    numels : sequence of numpy.ndarray
        Their numbers of entries.
    """

    __slots__ = ("_fractions", "_own", "_tallies")

    def __init__(
        self, tallies: Tallies, rows: Sequence[Rows], numels: Sequence[NDArray[Any]]
    ) -> None:
        self._tallies = tallies
        self._own = list(rows)
        self._fractions = [np.cumsum(each) / max(int(each.sum()), 1) for each in numels]
        for each in self._fractions:
            each[-1] = 1.0

    def encoded(self, rows: Rows, outcomes: Outcomes, nbytes: Integers) -> None:
        """Add one frame per bundle, with its bytes on the wire."""
        for place, bundle in enumerate(rows.tolist()):
            figures = (getattr(outcomes, each.name) for each in dataclasses.fields(outcomes))
            shares = Outcomes(*(self._share(bundle, each[place]) for each in figures))
            self._tallies.encoded(self._own[bundle], shares, self._share(bundle, nbytes[place]))

    def decoded(self, rows: Rows, nanoseconds: Integers) -> None:
        """Add the time of decoding all ranks' frames of each bundle."""
        for bundle, spent in zip(rows.tolist(), nanoseconds, strict=True):
            self._tallies.decoded(self._own[bundle], self._share(bundle, spent))

    def dense(self, rows: Rows, nbytes: Integers, nanoseconds: int) -> None:
        """Add one dense exchange per parameter, whose rows are those of all parameters."""
        self._tallies.dense(rows, nbytes, nanoseconds)

    def _share(self, bundle: int, figure: Any) -> Integers:
        """Return each member's share of a figure; -1, for none, of a figure that there is not."""
        if figure < 0:
            return np.full(len(self._own[bundle]), figure, np.int64)
        ends = np.floor(float(figure) * self._fractions[bundle]).astype(np.int64)
        return np.diff(ends, prepend=0)


def _adjacent(group: Sequence[Piece]) -> bool:
    return all(one.stop == other.start for one, other in itertools.pairwise(group))


def _order(
    groups: Sequence[Sequence[Piece]], runs: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the runs of all groups, and then those of what is dense."""
    found: list[tuple[int, int]] = []
    for start, stop in [*((each.start, each.stop) for group in groups for each in group), *runs]:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return found


def _moved(piece: Piece, at: Mapping[int, int]) -> Piece:
    start = at[id(piece)]
    return Piece(piece.parameter, start, start + piece.stop - piece.start)


def _kind(parameter: Parameter) -> Any:
    """Return what the members of a bundle have in common."""
    if not parameter.codec.memory.updates:
        return parameter.codec
    return parameter.codec, parameter.state.learning_rate, parameter.state.pace


def _name(parameter: Parameter) -> str:
    return parameter.name
