"""The report: bytes saved by packing in the last pass, by module."""

import dataclasses
from collections.abc import Mapping

from gradwire.report.text import columns, size


@dataclasses.dataclass(frozen=True)
class ModuleActivations:
    """The tensors that one module saved for backward: a row of an `ActivationReport`.

    A tensor counts for the module that saved it first. Parameters and buffers do not count.
    """

    #: As in ``model.named_modules()``.
    name: str
    #: Of its class.
    kind: str
    #: Of a code.
    bits: int
    #: Bytes of the tensors, as torch would keep them.
    saved_nbytes: int
    #: Bytes that are kept in their place, those of `left` included.
    nbytes: int
    #: Bytes that were left as they are, by the reason.
    left: Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class ActivationReport:
    """The tensors that modules saved since the model was last called. ``print`` shows a table."""

    modules: tuple[ModuleActivations, ...]
    #: Modules whose tensors are left as they are, with the reason. These are not counted.
    left: Mapping[str, str]

    @property
    def saved_nbytes(self) -> int:
        """Bytes of all tensors that these modules saved."""
        return sum(row.saved_nbytes for row in self.modules)

    @property
    def nbytes(self) -> int:
        """Bytes that are kept instead."""
        return sum(row.nbytes for row in self.modules)

    @property
    def left_nbytes(self) -> int:
        """Bytes of the tensors that were not packed."""
        return sum(sum(row.left.values()) for row in self.modules)

    @property
    def packed_share(self) -> float:
        """Packed bytes as a share of the original bytes of the packed tensors."""
        packed = self.saved_nbytes - self.left_nbytes
        return (self.nbytes - self.left_nbytes) / max(1, packed)

    def __str__(self) -> str:
        every = self.modules
        table = {
            "name": [row.name for row in every],
            "module": [row.kind for row in every],
            "bits": [str(row.bits) for row in every],
            "saved": [size(row.saved_nbytes) for row in every],
            "kept": [size(row.nbytes) for row in every],
            "left": [_reasons(row.left) for row in every],
        }
        last = (
            f"{size(self.saved_nbytes)} saved for backward, {size(self.nbytes)} kept; packed "
            f"tensors take {self.packed_share:.1%}"
        )
        reasons: dict[str, list[str]] = {}
        for name, reason in self.left.items():
            reasons.setdefault(reason, []).append(name)
        lines = [f"not packed: {', '.join(names)}: {why}" for why, names in reasons.items()]
        return "\n".join([*columns(table, {"name", "module", "left"}), last, *lines])


def _reasons(left: Mapping[str, int]) -> str:
    return ", ".join(
        f"{size(nbytes)} {reason}" if nbytes else reason for reason, nbytes in left.items()
    )


class Tally:
    """Counts the bytes of one module."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.saved, self.kept, self._left = 0, 0, dict[str, int]()

    def leave(self, reason: str, nbytes: int) -> None:
        self._left[reason] = self._left.get(reason, 0) + nbytes
        self.kept += nbytes

    def row(self, name: str, kind: str, bits: int) -> ModuleActivations:
        left = dict(self._left)
        return ModuleActivations(name, kind, bits, self.saved, self.kept, left)
