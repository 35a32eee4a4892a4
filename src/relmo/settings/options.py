"""Options of `embed`, `surprisal`, `evaluate`, `analyse counting` and `serve`, as keywords and as flags."""

from typing import Annotated, Literal

from msgspec import Meta

from relmo.errors import SettingError
from relmo.settings.fields import (
    DISABLED,
    ENABLED,
    MAX_SEED,
    Dimension,
    LearningRate,
    Only,
    PathName,
    Rate,
    SettingsSection,
)

Layers = Literal["all", "top", "average"] | int
Carry = Literal["reset", "carry", "warmup"]
Limit = Annotated[int, Meta(ge=1, le=1 << 30)]
AdaptationRate = Annotated[float, Meta(ge=0, le=1e6)]


class EmbedOptions(SettingsSection):
    """Layers, use of states, and batches of `embed`."""

    layers: Layers = "all"
    """all, top, average (of all), or a number: 0 for the token vectors, 1 and up for the LSTM layers."""
    state: Carry = "reset"
    """reset: every sentence starts from zero, and its vectors depend on nothing else. carry: a lane of a batch
    continues from the state at the end of the previous batch, as in the original tools. warmup: carry, after a first
    batch that is run twice."""
    batch_size: Annotated[int, Meta(ge=1)] | None = None
    """Largest number of sentences per batch; required by carry and warmup."""
    tokens_per_batch: Annotated[Annotated[int, Meta(ge=1)] | None, Only(state="reset")] = None
    """Largest number of words per batch."""

    def check_for(self, num_layers: int) -> None:
        """Raise `SettingError` if an option is invalid for a model with this number of layers, or has no effect."""
        layers = self.layers
        if layers not in ("all", "top", "average") and not (type(layers) is int and 0 <= layers < num_layers):
            choices = f"'all', 'top', 'average' or 0 (token vectors) to {num_layers - 1}"
            raise SettingError(f"layers is {layers!r}; this model has {choices}")
        self.check()
        if self.state != "reset" and self.batch_size is None:
            lanes = "the number of lanes, each with a state of its own (the original tools had 1, AllenNLP 64)"
            raise SettingError(f"state '{self.state}' needs a batch_size, {lanes}")

    def select_layers(self, num_layers: int) -> list[int]:
        """Return the indices of the layers that are read."""
        if isinstance(self.layers, int):
            return [self.layers]
        return [num_layers - 1] if self.layers == "top" else list(range(num_layers))


class SurprisalOptions(SettingsSection):
    """Context of the words and rows of the table of `surprisal`."""

    context: Literal["text", "sentence"] = "text"
    """text: the state is carried from line to line, as in `evaluate`. sentence: every line is read by itself, for lists
    of unrelated sentences."""
    direction: Literal["forward", "backward"] = "forward"
    """Bidirectional models: surprisal of a word given the words before it, or given those after it."""
    rows: Literal["words", "whitespace"] | None = None
    """Rows of the table: words of relmo's tokenizer, or stretches between whitespace, with their punctuation. The
    surprisals of several tokens are summed to one row. The default is the tokenizer of the model."""
    space: Literal["after", "before"] | None = None
    """Character models: whitespace that belongs to a word, after it (the default) or before it."""
    ends: bool = False
    """Show the ends of lines and texts (backward: the beginnings) as rows of their own."""
    adapt: AdaptationRate | None = None
    """Learning rate of the update of weights after each line, by its clipped gradient (van Schijndel & Linzen 2018)."""
    reset: Annotated[Literal["never", "text", "sentence"], Only(adapt=ENABLED)] = "never"
    """When the original weights are restored. never: they adapt to all lines. text: after an empty line, and where the
    id in a table changes. sentence: after each line; the weights adapt to its words, one by one."""

    def check_for(self, *, characters: bool, bidirectional: bool, tokenizer: str) -> None:
        """Raise `SettingError` if an option is invalid, or has no effect with a model of this kind."""
        self.check()
        if self.direction == "backward" and not bidirectional:
            raise SettingError("direction backward needs a bidirectional model; this model is a forward one")
        if self.space is not None and not characters:
            raise SettingError("space has an effect with character models only; leave it out")
        if self.rows == "words" and tokenizer == "whitespace" and not characters:
            raise SettingError("rows words are smaller than the tokens of this model, which are split at whitespace")


class SumOptions(SettingsSection):
    """Sums over words as rows of the table of `surprisal`."""

    totals: Annotated[bool, Only(region=DISABLED)] = False
    """One row per line: number of words, unknown words, total and mean surprisal, and mean entropy."""
    region: str | None = None
    """Tables of experiments: one row per region of each sentence, and the differences between the conditions. This
    column has the critical words of the sentence, or it is the column of the text, with regions separated by |."""
    item: Annotated[str, Only(region=ENABLED)] = "item"
    """With --region: the column with the item."""
    condition: Annotated[str, Only(region=ENABLED)] = "condition"
    """With --region: the column with the condition."""


class AdaptOptions(SettingsSection):
    """Dynamic evaluation and neural cache of `evaluate`."""

    adapt: AdaptationRate | None = None
    """Language models: also score the file with weights that are updated after each segment by its gradient, with this
    learning rate (dynamic evaluation; Krause et al. 2018)."""
    segment: Annotated[Annotated[int, Meta(ge=1, le=1 << 16)] | None, Only(adapt=ENABLED)] = None
    """Symbols between updates; by default 5 words or 20 characters."""
    adapt_statistics: Annotated[PathName | None, Only(adapt=ENABLED)] = None
    """A text, such as the training text: the updates of a weight are divided by the size of its gradients there."""
    adapt_decay: Annotated[float, Meta(ge=0, le=1), Only(adapt=ENABLED)] = 0.0
    """Share of the way back to the original weights at each update."""
    cache: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Language models: also score the file with a neural cache of so many positions (Grave et al. 2017)."""
    cache_theta: Annotated[float, Meta(ge=0, le=1e6), Only(cache=ENABLED)] = 0.3
    """Scale of the similarity of two positions; 0 counts the words in the cache."""
    cache_lambda: Annotated[Rate, Only(cache=ENABLED)] = 0.1
    """Weight of the cache in the mixture with the model."""


class CountingOptions(SettingsSection):
    """Training and testing of networks that count."""

    limit: Annotated[int, Meta(ge=4, le=1 << 16)] = 50
    """The largest n in training."""
    tested: Annotated[int, Meta(ge=4, le=1 << 20)] | None = None
    """The largest n in testing; by default four times --limit."""
    hidden: Dimension = 10
    """The hidden size."""
    steps: Annotated[int, Meta(ge=1, le=1_000_000)] = 3000
    """The number of training steps of each network."""
    batch: Annotated[int, Meta(ge=1, le=1 << 16)] = 32
    """The number of words per training step."""
    seeds: Annotated[int, Meta(ge=1, le=1000)] = 3
    """The maximum number of networks of each cell. Stops at the first without a mistake in validation."""
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)] = 0
    """The first random seed."""
    lr: LearningRate = 0.03
    """The learning rate."""
    growth: Annotated[float, Meta(ge=0, le=1)] = 0.05
    """Growth of the recurrent weights per step, relative to the learning rate. It saturates the gates, so that counting
    stays exact far beyond the words of training."""
    threshold: Annotated[float, Meta(ge=1e-5, lt=1)] = 0.01
    """The minimum probability of a symbol in an accepted word."""
    strings: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    """The number of random words for the balanced accuracy."""

    @property
    def largest(self) -> int:
        """Largest n in testing."""
        return 4 * self.limit if self.tested is None else self.tested

    def check(self) -> None:
        """Raise `SettingError` if a value is out of bounds."""
        super().check()
        if self.largest < self.limit:
            raise SettingError(f"tested must be at least limit, {self.limit}, not {self.tested}")


class ServeLimits(SettingsSection):
    """Limits of `relmo serve` per client and in total."""

    max_bytes: Limit = 1 << 20
    """Largest request in bytes; larger ones are answered with 413."""
    max_words: Limit = 2048
    """Largest number of tokens of a request, counted as its model reads them (words, subwords or characters), including
    those that the model may generate. Larger requests are answered with 413. One input, or one text whose state is
    carried, may have half as many."""
    max_source: Limit = 256
    """Largest number of tokens of one input of a sequence-to-sequence model. Longer inputs are answered with 413."""
    max_output: Limit = 128
    """Largest number of tokens that a sequence-to-sequence model may generate for one input."""
    batch_words: Limit = 512
    """Largest number of tokens that are computed together, of one or several requests; smaller batches reduce the
    latency behind large requests."""
    queue: Limit = 256
    """Largest number of requests in the server: waiting, computed (even if the client has disconnected), or answered
    and not yet read. Further requests are answered with 503. Together they may have 16 times --max-words tokens."""
    rate: Annotated[float, Meta(ge=0, le=1 << 30)] = 0.0
    """Largest number of requests per second and client, 0 for no limit; further ones are answered with 429."""
    connections: Limit = 1024
    """Largest number of connections. If it is exceeded, the server closes the one that has waited longest for its
    client."""
    seconds: Annotated[float, Meta(ge=0.1, le=1 << 30)] = 10.0
    """Seconds that a client may take to send its request, or to read a part of the response."""
    grace: Annotated[int, Meta(ge=0, le=1 << 30)] = 30
    """Seconds that the server has to finish accepted requests when it is stopped."""
