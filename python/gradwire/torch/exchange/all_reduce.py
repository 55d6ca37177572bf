"""The exchange by all-reduce: values of entries that all ranks know."""

from gradwire.torch.engine.step import BucketTask
from gradwire.torch.exchange.value_sum import ValueSumExchange
from gradwire.torch.exchange.vectors import Chosen

__all__ = ["AllReduceExchange"]


class AllReduceExchange(ValueSumExchange):
    """Sums the values of all entries, or of those drawn from a shared seed."""

    def _choose(self, job: BucketTask, sequence: int) -> Chosen:
        pieces = job.layout.pieces
        # Known even if encoding fails.
        counts = [piece.parameter.codec.sparsify.count(piece.parameter.numel) for piece in pieces]
        # The drawn entries depend on the step counts of the states.
        steps = [piece.parameter.step for piece in pieces]
        return Chosen(counts, [None] * len(pieces), None, {}, [0] * len(pieces), by=steps)
