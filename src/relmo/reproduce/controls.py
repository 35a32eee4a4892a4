"""What a figure has to beat before it says something about training or context.

The same network untrained shows what training adds. Static vectors, one a word whatever the sentence, show what context
adds. So does a third control that needs no model of its own: the biLM's layer 0, which reads each word alone.
"""

from dataclasses import dataclass

from relmo.models.bilm import BiLM
from relmo.models.vectors import WordVectors


@dataclass(frozen=True)
class Controls:
    """The models a reproduction compares with; without static vectors their rows are left out."""

    untrained: BiLM
    vectors: WordVectors | None = None
