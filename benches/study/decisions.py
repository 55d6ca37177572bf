"""What ``auto`` has decided, from the sentence that it says of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
    after : str
        How many steps it took to settle, and how long, in words; empty where nobody has counted.
    """

    text: str
    settled: bool
    ratios: tuple[float, ...]
    after: str = ""

    @classmethod
    def of(cls, sentence: str, row: Mapping[str, Any] | None = None) -> "Decision":
        """Read the sentence, and the row of a cell that has it."""
        text = sentence.rstrip(".")
        kept = re.match(r"It averages by (.+?): a step takes ", sentence)
        tried = re.match(r"It tries (.+?), which is predicted", sentence)
        if kept or tried:
            text = (kept or tried)[1]  # type: ignore[index]
        ratios = tuple(float(each) for each in re.findall(r"at ratio ([\d.e-]*\d)", text))
        after = ""
        if row is not None and "settling_steps" in row:
            after = f"{row['settling_steps']} steps, {row['settling_seconds']:.2g} s"
        return cls(text, kept is not None, ratios, after)
