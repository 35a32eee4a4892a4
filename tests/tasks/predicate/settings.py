"""The settings of `relmo train predicate`: the roles that words play for one predicate of their sentence."""

from dataclasses import field
from typing import ClassVar

from relmo.settings.fields import Dimension, SettingsSection, Size
from relmo.settings.sections import TaskSettings


class PredicateModelSettings(SettingsSection):
    """The network that reads a sentence with a mark on its predicate."""

    hidden: Size = 200
    """Units of the layer in each direction."""
    mark_dim: Dimension = 10
    """Size of the vector that tells the predicate from the other words."""


class PredicateSettings(TaskSettings):
    """Train a model of predicates: which sense one has, and which roles the other words play for it.

    relmo train predicate train.jsonl --out models/predicate
    """

    files: ClassVar[str] = "JSON lines with words, predicate (a number from 0 on), sense and roles."
    """What it is trained on."""

    model: PredicateModelSettings = field(default_factory=PredicateModelSettings)
