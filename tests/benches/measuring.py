"""A rank that measures the link to the others."""

from dataclasses import asdict
from typing import Any

from benches.harness.rank_process import form_group
from gradwire.torch import cost


class Commands:
    def link(self, seconds: float) -> dict[str, float]:
        return asdict(cost.measure_link(seconds=seconds))


def join(setup: dict[str, Any], say: Any) -> Commands:
    form_group(setup)
    return Commands()
