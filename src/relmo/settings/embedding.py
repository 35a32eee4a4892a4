"""What is asked of `embed`: the keywords of `BiLM.embed` and the flags of `relmo embed`."""

from dataclasses import dataclass
from typing import Literal

from relmo.errors import SettingError

Layers = Literal["all", "top", "average"] | int
Carry = Literal["reset", "carry", "warmup"]


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """Which layers are wanted, how states are used, how sentences are batched."""

    layers: Layers = "all"
    """all, top, average (of all), or a number: 0 for the words' own vectors, 1 and up for the LSTMs."""
    state: Carry = "reset"
    """reset: every sentence starts from zero, and its vectors depend on nothing else. carry: a row of a batch goes on
    where that row of the batch before ended, as in the original tools. warmup: carry, after a first batch that is run
    twice."""
    batch_size: int | None = None
    """At most this many sentences side by side; carry and warmup need it."""
    tokens_per_batch: int | None = None
    """At most this many words side by side."""

    def check(self, layer_count: int) -> None:
        """Options that are unknown, impossible, or would do nothing are errors."""
        if self.layers not in ("all", "top", "average") and not (
            isinstance(self.layers, int) and 0 <= self.layers < layer_count
        ):
            raise SettingError(
                f"layers is {self.layers!r}; this model has 'all', 'top', 'average' or 0 (words) to {layer_count - 1}"
            )
        if self.state not in ("reset", "carry", "warmup"):
            raise SettingError(f"state is {self.state!r}; it can be 'reset', 'carry' or 'warmup'")
        for name, value in (("batch_size", self.batch_size), ("tokens_per_batch", self.tokens_per_batch)):
            if value is not None and value < 1:
                raise SettingError(f"{name} must be 1 or more, not {value}")
        if self.state != "reset" and self.batch_size is None:
            raise SettingError(
                f"state '{self.state}' needs a batch_size: how many sentences stand side by side, each row with its "
                "own state (the original tools took 1, AllenNLP 64)"
            )
        if self.state != "reset" and self.tokens_per_batch is not None:
            raise SettingError(f"tokens_per_batch cannot go with state '{self.state}', whose batches are of batch_size")

    def chosen(self, layer_count: int) -> list[int]:
        """The layers to look at."""
        if isinstance(self.layers, int):
            return [self.layers]
        return [layer_count - 1] if self.layers == "top" else list(range(layer_count))
