"""What ``auto`` has decided, from the sentence that it says of it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Decision:
    """How buckets are averaged.

    Attributes
    ----------
    text : str
        ``fp32``, ``bf16``, or the codec and its ratio; of a model with several buckets, of each.
    settled : bool
        Whether it was measured to be the best; False while another setting is tried.
    ratios : tuple of float
        That the codec sends.
    """

    text: str
    settled: bool
    ratios: tuple[float, ...]

    @classmethod
    def of(cls, said: Sequence[str]) -> "Decision":
        """Read the sentence of a cell."""
        sentence = " ".join(said)
        text = sentence.rstrip(".")
        kept = re.match(r"It averages by (.+?): a step takes ", sentence)
        tried = re.match(r"It tries (.+?), which is predicted", sentence)
        if kept or tried:
            text = (kept or tried)[1]  # type: ignore[index]
        ratios = tuple(float(each) for each in re.findall(r"at ratio ([\d.e-]*\d)", text))
        return cls(text, kept is not None, ratios)
