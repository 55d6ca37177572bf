"""The exchange by all-reduce: values of entries that all ranks know."""

import math

from gradwire.torch.ddp.exchange.summed import Chosen, Summed
from gradwire.torch.ddp.jobs import Job
from gradwire.torch.ddp.layout import Parameter

__all__ = ["Reduced"]


class Reduced(Summed):
    """Sums the values of all entries, or of those drawn from a shared seed."""

    def _choose(self, job: Job, sequence: int) -> Chosen:
        pieces = job.layout.pieces
        counts = [_count(piece.parameter) for piece in pieces]
        # The drawn entries depend on the step counts of the states.
        steps = [getattr(piece.parameter.state, "step", None) for piece in pieces]
        return Chosen(counts, [None] * len(pieces), None, {}, [0] * len(pieces), by=steps)


def _count(parameter: Parameter) -> int:
    """Return the number of entries to send, which must be known even if encoding fails."""
    sparsify, numel = parameter.codec.sparsify, parameter.numel
    k: int | None = getattr(sparsify, "k", None)
    ratio: float | None = getattr(sparsify, "ratio", None)
    if ratio is not None:
        k = max(1, math.floor(ratio * numel))
    return numel if k is None else min(k, numel)
