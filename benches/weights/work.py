"""Runs that are kept as they finish, and the processes that make them."""

import contextlib
import functools
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gradwire
from benches.accuracy.run import Task
from benches.harness import results
from benches.harness.machine import machine
from benches.harness.results import Record

from . import models
from .plan import Model, Run, Runs

SCHEMA = 1

Measure = Callable[[Any], dict[str, Any]]
"""Returns what is recorded of a model at a setting."""
Bench = Callable[[Task, nn.Module], Measure]
"""Returns what measures one trained model, on the data of its task."""

_versions = functools.cache(results.versions)

Order = tuple[Run, Path]


def key(run: Run, schema: int = SCHEMA) -> dict[str, Any]:
    """Return what determines a run."""
    return {
        "schema": schema,
        "trained": models.settings(run.model),
        "setting": None if run.setting is None else asdict(run.setting),
        "versions": {} if run.setting is None else _versions("gradwire", "numpy", "torch"),
    }


@dataclass
class Planned:
    """The runs of a plan, for a pool: trained weights are in one folder, records in a file."""

    plan: Runs
    store: results.Store
    folder: Path = field(default_factory=lambda: models.FOLDER)
    schema: int = SCHEMA
    _here: dict[Run, Record] = field(init=False)

    def __post_init__(self) -> None:
        wanted = {str(key(run, self.schema)): run for run in self.plan.runs()}
        self._here = {}
        for record in self.store.records:
            run = wanted.get(str(record.get("key")))
            if run is not None and self._is_kept(run.model):
                self._here[run] = record

    def _is_kept(self, model: Model) -> bool:
        return models.place(model, self.folder).exists()

    def records(self) -> dict[Run, Record]:
        """Return what is there, in the order of the plan."""
        return {run: self._here[run] for run in self.plan.runs() if run in self._here}

    def missing(self) -> list[Run]:
        """Return trainings, and what can be evaluated already."""
        missing = [run for run in self.plan.runs() if run not in self._here]
        return [run for run in missing if run.setting is None or self._is_kept(run.model)]

    def order(self, run: Run) -> Order:
        return run, self.folder

    def keep(self, run: Run, outcome: dict[str, Any]) -> Record:
        record = {
            "key": key(run, self.schema),
            **outcome,
            "processor": machine().get("processor", ""),
        }
        self.store.add(record)
        self._here[run] = record
        return record


def serve(pipe: Connection, data: Path | None, bench: Bench) -> None:
    """Train and evaluate what is ordered, on one thread, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    torch.set_num_threads(1)
    gradwire.set_num_threads(1)
    made: dict[Model, Callable[[Run, Path], dict[str, Any]]] = {}
    with contextlib.suppress(EOFError, BrokenPipeError):  # the parent has ended
        while True:
            run, folder = pipe.recv()
            try:
                if run.model not in made:
                    made[run.model] = _Worker(run.model, data, bench)
                answer: object = made[run.model](run, folder)
            except Exception as error:  # for the parent, which reports it
                answer = error
            pipe.send(answer)


class _Worker:
    """One model with its data; its weights are read once."""

    def __init__(self, model: Model, data: Path | None, bench: Bench) -> None:
        self._model, self._bench = model, bench
        self._task = models.task_of(model.name, data)
        self._measure: Measure | None = None

    def __call__(self, run: Run, folder: Path) -> dict[str, Any]:
        if run.setting is None:
            if not models.place(self._model, folder).exists():
                models.keep(models.train(self._model, self._task), self._model, self._task, folder)
            return {"facts": self._task.facts()}
        if self._measure is None:
            self._measure = self._bench(self._task, models.trained(self._model, self._task, folder))
        return self._measure(run.setting)
