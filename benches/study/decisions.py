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
        Whether it was measured to be the best when the timed turns began; False while another
        setting was tried.
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
        """Read the sentence, or the row of a cell that has it as the last of all.

        A row also has what was said when the timed turns began. Of an earlier edition it has not:
        the last sentence stands for it.
        """
        row = row or {}
        text, settled = _read(str(row.get("said_settled", sentence)))
        later, decided = _read(sentence)
        if decided and later != text:
            text = f"{text}; later {later}"  # it compares anew from time to time
        ratios = tuple(float(each) for each in re.findall(r"at ratio ([\d.e-]*\d)", text))
        after = ""
        if "settling_steps" in row:
            after = f"{row['settling_steps']} steps, {row['settling_seconds']:.2g} s"
        return cls(text, bool(row.get("settled", settled)), ratios, after)


def _read(sentence: str) -> tuple[str, bool]:
    """Return what a sentence is about, and whether it tells of a decision."""
    kept = re.match(r"It averages by (.+?): a step takes ", sentence)
    tried = re.match(r"It tries (.+?), which is predicted", sentence)
    found = kept or tried
    return sentence.rstrip(".") if found is None else found[1], kept is not None
