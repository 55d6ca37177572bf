"""The process of a rank: it joins the others and obeys its standard input. See `benches.ranks`."""

import json
import os
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import gradwire

Say = Callable[..., None]
"""Writes a line with these keywords to the process that asks."""


def join(setup: Mapping[str, Any], seconds: float) -> Say:
    """Form a process group with the others, with one thread each; return what answers.

    Standard output is kept for answers: what is printed goes to standard error.

    Parameters
    ----------
    setup : mapping
        ``rank``, ``ranks``, and the ``folder`` where they meet.
    seconds : float
        After which a collective fails.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(**what: Any) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    torch.set_num_threads(1)
    gradwire.set_num_threads(1)
    # A file, not a port: it reaches across namespaces.
    dist.init_process_group(
        "gloo",
        init_method=f"file://{setup['folder']}/store",
        rank=setup["rank"],
        world_size=setup["ranks"],
        timeout=timedelta(seconds=seconds),
    )
    return say


def obey(commands: object, say: Say) -> None:
    """Do what each line of standard input says: ``do`` names a method, the rest its arguments."""
    for line in sys.stdin:
        command = json.loads(line)
        say(**getattr(commands, command.pop("do"))(**command))
