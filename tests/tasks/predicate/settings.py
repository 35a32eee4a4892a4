"""The settings of `relmo train predicate`: the roles that words play for one predicate of their sentence."""

from dataclasses import dataclass, field
from typing import ClassVar

from relmo.settings.bounds import check_bounds
from relmo.settings.task import InputSettings, TaskTextSettings, TaskTrainSettings, check_inputs, check_task_training


@dataclass(frozen=True, kw_only=True)
class PredicateModelSettings:
    """The network that reads a sentence with a mark on its predicate."""

    hidden: int = 200
    """Units of the layer in each direction."""
    mark_dim: int = 10
    """Size of the vector that tells the predicate from the other words."""


@dataclass(frozen=True, kw_only=True)
class PredicateSettings:
    """Train a model of predicates: which sense one has, and which roles the other words play for it.

    relmo train predicate train.jsonl --out models/predicate
    """

    files: ClassVar[str] = "JSON lines with words, predicate (a number from 0 on), sense and roles."
    """What it is trained on."""

    text: TaskTextSettings = field(default_factory=TaskTextSettings)
    input: InputSettings = field(default_factory=InputSettings)
    model: PredicateModelSettings = field(default_factory=PredicateModelSettings)
    train: TaskTrainSettings = field(default_factory=TaskTrainSettings)


def check_predicate(settings: PredicateSettings) -> None:
    """Settings that make no sense, alone or together, are errors before anything is read."""
    check_bounds(settings.text, settings.model, bounds={"hidden": (1, 1000), "mark_dim": (1, 1000)})
    check_inputs(settings.input)
    check_task_training(settings.train)
