"""What ``auto`` has decided, from the sentence that it says of it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gradwire.auto import Setting

_CODEC = re.compile(r"\bthe codec(?: at ratio ([\d.e-]*\d))?( through owners)?")


@dataclass(frozen=True)
class Decision:
    """How buckets are averaged.

    Attributes
    ----------
    text : str
        ``fp32``, ``bf16``, or the codec, its ratio and exchange; of several buckets, of each. Then
        what else was decided by the end of a timed turn.
    settled : bool
        Whether it was measured to be the best when the timed turns began; False while another
        setting was tried.
    codecs : tuple of Setting
        All ratios and exchanges of the codec that the text names.
    after : str
        How many steps it took to settle, and how long, in words; empty where nobody has counted.
    """

    text: str
    settled: bool
    codecs: tuple[Setting, ...]
    after: str = ""

    @classmethod
    def of(cls, sentence: str, row: Mapping[str, Any] | None = None) -> "Decision":
        """Read the sentence, or the row of a cell that has it as the last of all.

        A row also has what was said when the timed turns began, and what was decided by the end of
        each turn. A row of before has not: the last sentence stands for both.
        """
        row = row or {}
        text, settled = _read(str(row.get("said_settled", sentence)))
        later = row.get("decided", decided([sentence]))  # it compares anew from time to time
        text = "; later ".join(dict.fromkeys([text, *later]))
        codecs = tuple(
            Setting("codec", float(ratio) if ratio else None, "owners" if owners else "gather")
            for ratio, owners in _CODEC.findall(text)
        )
        after = ""
        if "settling_steps" in row:
            after = f"{row['settling_steps']} steps, {row['settling_seconds']:.2g} s"
        return cls(text, bool(row.get("settled", settled)), codecs, after)


def decided(sentences: Iterable[str]) -> list[str]:
    """Return what sentences tell to be decided, each once."""
    read = map(_read, sentences)
    return list(dict.fromkeys(text for text, kept in read if kept))


def _read(sentence: str) -> tuple[str, bool]:
    """Return what a sentence is about, and whether it tells of a decision."""
    kept = re.match(r"It averages by (.+?): a step takes ", sentence)
    tried = re.match(r"It tries (.+?), which is predicted", sentence)
    found = kept or tried
    return sentence.rstrip(".") if found is None else found[1], kept is not None
