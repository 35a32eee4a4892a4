"""Interface of language models: analyses, surprisal, the explorer and serving depend on it alone.

A text consists of symbols: characters, words or pieces of words. Each is predicted from those before it and, in a
second direction, from those after it. The interface gives the inputs of the recurrent layers and the output layer, so
that `relmo.analysis` can run the layers between them with every quantity recorded.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from relmo.errors import CorpusError, ModelError
from relmo.models.adapt import Adaptation, LineAdapter
from relmo.models.evaluate import Watch, full_precision
from relmo.models.saved import SavedModel
from relmo.models.surprisal import ReadLine, Rows, SurprisalTable, Texts, WordSurprisal, surprisal_rows
from relmo.nn.recurrence import State
from relmo.nn.softmax import FullSoftmax
from relmo.settings.fields import check_text
from relmo.settings.options import SurprisalOptions
from relmo.text.sources import SourceText
from relmo.text.vocabulary import Vocabulary

BATCH_SYMBOLS = 1 << 14  # symbols per batch
FileParts = tuple[Sequence["Reading"], Callable[..., Any], Callable[..., Any]]
M = TypeVar("M", bound="SequenceModel")


class SequenceModel(SavedModel):
    """Base class of language models; subclasses implement the methods after `# implemented by each kind`.

    directions        reading directions, which predict independently of each other
    reads_sentences   each sentence is read by itself, between boundaries; otherwise a text of any length is read with
                      the state carried, and starts after the boundary that ends the previous text
    can_generate      it has the methods `generate`, `stream` and `search`
    can_embed         it has the method `embed`

    `settings.text` has the attributes `lowercase` and `tokenizer`, and `unit` if symbols can be characters.
    """

    directions: ClassVar[tuple[str, ...]] = ("forward",)
    reads_sentences: ClassVar[bool] = False
    can_generate: ClassVar[bool] = False
    can_embed: ClassVar[bool] = False
    device: torch.device
    network: Any

    @property
    def label(self) -> str:
        """Short name of the architecture, for tables."""
        return self.kind

    @property
    def unit(self) -> Literal["char", "word"]:
        """Unit of the symbols; pieces of words are words."""
        return getattr(self.settings.text, "unit", "word")

    @property
    def is_recurrent(self) -> bool:
        """True if the network has recurrent layers."""
        return True

    def get_recurrent_network(self) -> Any:
        """Return the network; raise `ModelError` if it has no recurrent layers."""
        if not self.is_recurrent:
            raise ModelError(f"A {self.label} model has no recurrent layers; train one with --cell lstm.")
        return self.network

    def get_output_vocabulary(self) -> Vocabulary:
        """Return the vocabulary of the predictions; raise `ModelError` if there are none."""
        if self.vocabulary is None:
            raise ModelError("the model has no output layer and predicts no symbols")
        return self.vocabulary

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of the symbols of a text."""
        return self.get_output_vocabulary().ids(self.tokens(check_text(text)))

    def split_texts(self, text: Texts) -> list[list[str]]:
        """Split texts, or sentences if the model reads these, into symbols; empty ones are dropped."""
        if isinstance(text, str):
            text = text.split("\n") if self.reads_sentences else [text]
        texts = [self.tokens(source) if isinstance(source, str) else list(source) for source in text]
        texts = [symbols for symbols in texts if symbols]
        if not texts:
            raise CorpusError("The text is empty.")
        return texts

    def count_symbols(self, sentence: str | Sequence[str]) -> int:
        """Return the number of symbols of a string or a list of words."""
        if isinstance(sentence, str):
            return len(self.tokens(sentence))
        return len(sentence) + (sum(map(len, sentence)) if self.unit == "char" else 0)

    def surprisal(
        self,
        text: Texts,
        *,
        context: Literal["text", "sentence"] = "text",
        direction: Literal["forward", "backward"] = "forward",
        rows: Literal["words", "whitespace"] | None = None,
        space: Literal["after", "before"] | None = None,
        ends: bool = False,
        adapt: float | None = None,
        reset: Literal["never", "text", "sentence"] = "never",
    ) -> SurprisalTable:
        """Return one row per word: its position, its surprisal and preceding entropy in bits, whether it is unknown.

        text        a string, whose lines are sentences; or a list of sentences, each a string or a list of words
        context     "text": the state is carried from line to line; "sentence": each is read independently
        direction   bidirectional models: predict words from those before them ("forward") or after them ("backward")
        rows        unit of a row: "words" of relmo's tokenizer, or "whitespace"; by default the model's tokenizer
        space       character models: a word includes the whitespace "after" it (default) or "before" it
        ends        include rows for the ends (backwards, the beginnings) of lines and texts
        adapt       learning rate with which a copy of the model is updated after each line
        reset       restore the weights "never", at each "text" (after an empty line), or after each "sentence"
        """
        options = SurprisalOptions(
            context=context, direction=direction, rows=rows, space=space, ends=ends, adapt=adapt, reset=reset
        )
        return SurprisalTable.from_text(self, text, options)

    def surprisal_rows(self, texts: Iterable[SourceText], options: SurprisalOptions) -> Iterator[WordSurprisal]:
        """Yield the rows of texts of any size, including ends."""
        self.get_output_vocabulary()
        tokenizer, is_bidirectional = self.settings.text.tokenizer, len(self.directions) > 1
        options.check_for(characters=self.unit == "char", bidirectional=is_bidirectional, tokenizer=tokenizer)
        return surprisal_rows(self, texts, options)

    def evaluate(
        self, file: str | Path, *, lanes: int = 16, watch: Watch | None = None, adaptation: Adaptation | None = None
    ) -> Any:
        """Return the score of a file. Every symbol is predicted once per direction, with the state carried throughout.

        `lanes` affects the speed only. `watch` is called with the symbols scored since the last call and the total.
        An `Adaptation` of the model adds a second score, `adapted`; it sees the text that it is scored on."""
        with tempfile.TemporaryDirectory() as scratch:
            readings, total_nll, make_score = self.open_file(file, Path(scratch))
            total = readings[0].num_steps * (1 if adaptation is None else 1 + len(readings))
            progress = None if watch is None else lambda count: watch(count, total)
            nll = np.atleast_1d(total_nll(lanes=lanes, progress=progress)).tolist()
            adapted = None if adaptation is None else make_score(*adaptation.total_nll(readings, progress))
            return make_score(*nll, adapted=adapted)

    def symbol_losses(self, texts: Sequence[Sequence[str]], direction: str = "forward") -> np.ndarray:
        """Return the loss of every symbol of texts in nats, without their ends; float64 (T,)."""
        is_symbol = np.ones(sum(map(len, texts)) + len(texts), dtype=bool)
        is_symbol[np.cumsum([len(text) + 1 for text in texts]) - 1] = False
        return self.make_reading(texts, direction).full_context_nll(np.flatnonzero(is_symbol)).astype(np.float64)

    @property
    def input_table(self) -> Tensor | None:
        """Inputs (V, I) of the recurrent layers by id, if they depend on the id alone; None if they are computed."""
        return None

    @property
    def softmax(self) -> Any:
        """Output layer; None if there is none."""
        return self.network.softmax

    @property
    def bottleneck(self) -> nn.Linear | None:
        """Layer between the top recurrent layer and the output layer, if any."""
        return None

    def output_features(self, y: Tensor) -> Tensor:
        """Return the input of the output layer for outputs of the top recurrent layer (…, O)."""
        return y if self.bottleneck is None else self.bottleneck(y)

    def warn_truncated(self, texts: Sequence[Sequence[str]]) -> None:
        """Warn if the model reads only a part of some symbols; by default, it reads all."""

    # implemented by each kind

    def with_initial_weights(self) -> Self:
        """Return the same model with random initial weights."""
        raise NotImplementedError

    def tokens(self, text: str) -> list[str]:
        """Split raw text into symbols."""
        raise NotImplementedError

    def target_symbols(self, text: str | Sequence[str], *, is_sentence: bool) -> list[str]:
        """Return the symbols that are predicted for a text or words, including the end if it is a complete sentence."""
        raise NotImplementedError

    def recurrent_inputs(self, texts: Sequence[Sequence[str]], *, boundary: bool = True) -> Tensor:
        """Return the inputs of the recurrent layers for padded texts, in each direction's reading order (D, T, B, I).

        The first step is the boundary before the text; without `boundary`, which needs a model that does not read
        sentences, the first symbol."""
        raise NotImplementedError

    def make_reading(self, text: Texts, direction: str = "forward") -> "Reading":
        """Return the steps of one direction over a text."""
        raise NotImplementedError

    def open_file(self, file: str | Path, folder: Path) -> FileParts:
        """Encode a file into `folder`; return a reading of each direction, a function (lanes, progress) that computes
        the negative log-likelihood of each, and one that makes a score of these."""
        raise NotImplementedError

    def read_line(self, source: SourceText, options: SurprisalOptions, *, last: bool) -> ReadLine | None:
        """Convert a line of a text for `score_lines`; return None if it is skipped."""
        raise NotImplementedError

    def score_lines(
        self, rows: Rows, options: SurprisalOptions, carry: Any, adapter: LineAdapter | None = None
    ) -> tuple[np.ndarray, Any]:
        """Return surprisal and entropy (2, B, T), in bits, of rows of lines in reading order, and the state after them;
        `carry` is the state after the previous ones. The `adapter` is for `score_windows`."""
        raise NotImplementedError


def untrained(model: M, seed: int = 0) -> M:
    """Return the same model with initial weights; torch's random state is restored."""
    if not model.is_recurrent:
        raise ModelError("Only recurrent language models can be reinitialised.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model.with_initial_weights()


class Reading:
    """A text as the steps of one direction of a model: inputs of the recurrent layers, targets and losses.

    Step 0 reads the boundary before the text. Subclasses implement the methods after `# implemented by each kind`."""

    model: SequenceModel
    num_steps: int
    direction = 0  # 1 is the backward direction

    def losses(self, y: Tensor, targets: Tensor, *, logits: bool = False) -> Tensor:
        """Return -log p of targets (B,) for the top outputs (B, O), or their logits (adaptive softmax: log p)."""
        softmax = self.model.softmax
        assert softmax is not None
        x = self.model.output_features(y.to(next(softmax.parameters())))
        if not logits:
            return softmax.nll(x, targets)
        scores = softmax.logits(x) if isinstance(softmax, FullSoftmax) else softmax.log_probs(x)
        return scores.gather(1, targets.unsqueeze(1)).squeeze(1)

    def full_context_nll(self, ends: np.ndarray) -> np.ndarray:
        """Return -log p after each of these ascending steps (N,), with the state carried from the beginning."""
        state: State | None = None
        losses = []
        for begin in range(0, int(ends[-1]) + 1, BATCH_SYMBOLS):
            steps = np.arange(begin, min(begin + BATCH_SYMBOLS, self.num_steps))
            selection = ends[(ends >= steps[0]) & (ends <= steps[-1])] - begin
            with torch.no_grad(), full_precision():
                nll, state = self.compute_nll(steps[None], selection, state)
            losses.append(nll[0].cpu().numpy())
        return np.concatenate(losses)

    def sample_ends(self, count: int, context: int, seed: int) -> np.ndarray:
        """Draw up to `count` steps with at least `context` steps before them; sorted."""
        num_candidates = self.num_steps - context
        if num_candidates <= 0:
            raise CorpusError(
                f"The text has {self.num_steps} symbols, but {context + 1} are required; use more text or less context."
            )
        generator = np.random.default_rng(seed)
        return np.sort(context + generator.choice(num_candidates, size=min(count, num_candidates), replace=False))

    def compute_nll(self, steps: np.ndarray, selection: np.ndarray, state: State | None) -> tuple[Tensor, State]:
        """Read steps (B, T); return the losses (B, W) after the selected ones (W,) of the T, and the final state."""
        x, targets, state = self.read(steps, state)
        # A large output layer is slow: it is applied to the selected steps only.
        nll = self.model.softmax.nll(x[:, selection].flatten(0, 1), targets[:, selection].flatten())
        return nll.view(len(x), -1), state

    # implemented by each kind

    def get_symbols(self, steps: np.ndarray) -> list[str]:
        """Return the symbols that are read at steps (T,)."""
        raise NotImplementedError

    def get_inputs(self, steps: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the inputs (B, T, I) of the recurrent layers at steps (B, T), and the ids (B, T) of the targets."""
        raise NotImplementedError

    def read(self, steps: np.ndarray, state: State | None) -> tuple[Tensor, Tensor, State]:
        """Read steps (B, T); return the input (B, T, D) of the output layer, the targets (B, T), and the state."""
        raise NotImplementedError
