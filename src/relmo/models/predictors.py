"""How models read lines for `surprisal`: which symbols they predict, and what each costs.

Both read as `evaluate` does. A language model reads one stream that begins with </s>; a bidirectional model reads
sentences, forwards <S> w1 … wn and backwards </S> wn … w1, with the state carried from one to the next.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding

from relmo.models.surprisal import ReadLine, SymbolScores, read_characters, read_tokens, scored, side_by_side
from relmo.networks.bilm import BiLMNetwork
from relmo.networks.language_model import NeuralLM
from relmo.networks.ngram import NGramLM
from relmo.nn.cells import State
from relmo.settings.bilm import BiLMSettings
from relmo.settings.lm import TextSettings
from relmo.settings.surprisal import SurprisalOptions
from relmo.text.characters import BOS, EOS, Spellings
from relmo.text.sources import SourceText
from relmo.text.vocabulary import END, SentenceVocabulary, Vocabulary


class StreamPredictor:
    """A language model over characters or words."""

    def __init__(
        self,
        network: NeuralLM | NGramLM,
        vocabulary: Vocabulary,
        text: TextSettings,
        options: SurprisalOptions,
        device: torch.device,
    ):
        self.network, self.vocabulary, self.text, self.device = network, vocabulary, text, device
        self.options = options
        self.characters = text.unit == "char"
        options.check(characters=self.characters, bidirectional=False, tokenizer=text.tokenizer)
        self.before = vocabulary.end  # the symbol that was read last

    def read(self, source: SourceText, *, last: bool) -> ReadLine:
        """A line; the end of the text follows the last."""
        ends = ["\n"] if source.ended else []
        if self.text.text_per == "line":
            ends = [END]
        elif last and self.options.context == "text":
            ends.append(END)
        rows, lowercase = self.options.rows, self.text.lowercase
        if self.characters:
            space = self.options.space or "after"
            return read_characters(source, rows=rows or "words", space=space, lowercase=lowercase, ends=ends)
        return read_tokens(source, tokenizer=self.text.tokenizer, rows=rows, lowercase=lowercase, ends=ends)

    def _ids(self, line: ReadLine) -> np.ndarray:
        return self.vocabulary.ids([*line.symbols, *line.ends])

    def carried(self, lines: Sequence[ReadLine], state: State | None) -> tuple[list[SymbolScores], State]:
        """As `Predictor.carried`: one stream."""
        if state is None:
            state, self.before = self.network.initial_state(1), self.vocabulary.end
        ids = [self._ids(line) for line in lines]
        stream = np.concatenate([[self.before], *ids])
        found, state = self._score(stream[None], state)
        self.before = int(stream[-1])
        bounds = np.cumsum([len(each) for each in ids])[:-1]
        return [SymbolScores(*each) for each in np.split(found[:, 0], bounds, axis=1)], state

    def alone(self, lines: Sequence[ReadLine]) -> list[SymbolScores]:
        """As `Predictor.alone`: side by side, each after </s>."""
        ids = [np.concatenate([[self.vocabulary.end], self._ids(line)]) for line in lines]
        found, _ = self._score(side_by_side(ids, self.vocabulary.end), self.network.initial_state(len(ids)))
        return [SymbolScores(*found[:, i, : len(each) - 1]) for i, each in enumerate(ids)]

    def _score(self, ids: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        window = torch.from_numpy(ids.astype(np.int64)).to(self.device)  # (B, T + 1)
        network = self.network

        def read(stretch: slice, state: State) -> tuple[Tensor, State]:
            return network.features(window[:, :-1][:, stretch], state)

        return scored(read, network.log_probs, window[:, 1:], state, network.vocab_size)


class TwoWays(NamedTuple):
    """What both directions of a bidirectional model read and predict, each (2, T, B), of the distinct `words`."""

    words: list[str]
    inputs: np.ndarray
    targets: np.ndarray


class SentencePredictor:
    """A direction of a bidirectional model."""

    def __init__(
        self,
        network: BiLMNetwork,
        vocabulary: SentenceVocabulary,
        settings: BiLMSettings,
        options: SurprisalOptions,
        device: torch.device,
    ):
        self.network, self.vocabulary, self.settings, self.device = network, vocabulary, settings, device
        self.options, self.direction = options, int(options.direction == "backward")
        options.check(characters=False, bidirectional=True, tokenizer=settings.text.tokenizer)

    def read(self, source: SourceText, *, last: bool) -> ReadLine | None:
        """A sentence; lines without words are passed over."""
        text = self.settings.text
        ends = [BOS if self.direction else EOS]
        line = read_tokens(
            source, tokenizer=text.tokenizer, rows=self.options.rows, lowercase=text.lowercase, ends=ends
        )
        return line if line.symbols else None

    def carried(self, lines: Sequence[ReadLine], state: State | None) -> tuple[list[SymbolScores], State]:
        """As `Predictor.carried`: one sentence after the other."""
        read = [[line.symbols for line in lines]]
        found, state = self._score(read, self.network.initial_state(1) if state is None else state)
        bounds = np.cumsum([line.size for line in lines])[:-1]
        return [self._in_order(each) for each in np.split(found[:, 0], bounds, axis=1)], state

    def alone(self, lines: Sequence[ReadLine]) -> list[SymbolScores]:
        """As `Predictor.alone`: sentences side by side."""
        found, _ = self._score([[line.symbols] for line in lines], self.network.initial_state(len(lines)))
        return [self._in_order(found[:, i, : line.size]) for i, line in enumerate(lines)]

    def _in_order(self, found: np.ndarray) -> SymbolScores:
        """The scores of a sentence in the order of the text, the end last; they come in the order of reading."""
        if self.direction:
            found = np.concatenate([found[:, -2::-1], found[:, -1:]], axis=1)
        return SymbolScores(*found)

    def _score(self, rows: Sequence[Sequence[list[str]]], state: State) -> tuple[np.ndarray, State]:
        """Bits and entropy (2, B, T) of rows of sentences."""
        network, d = self.network, self.direction
        assert network.softmax is not None
        both = _two_ways(rows, self.vocabulary)
        vectors = network.encoder(self._spelled(both.words))
        inputs, targets = (torch.from_numpy(array).to(self.device) for array in (both.inputs, both.targets))

        def read(stretch: slice, state: State) -> tuple[Tensor, State]:
            run = network.lstm(embedding(inputs[:, stretch], vectors), state)
            return run.layers[-1][d].transpose(0, 1), run.state

        return scored(read, network.softmax.log_probs, targets[d].T.contiguous(), state, len(self.vocabulary))

    def _spelled(self, words: list[str]) -> Tensor:
        """Words as the network reads them: by their characters, or by their numbers."""
        if self.settings.model.input == "word":
            return torch.from_numpy(self.vocabulary.ids(words)).to(self.device)
        return torch.from_numpy(Spellings(words, self.settings.model.max_characters).ids()).to(self.device)


def _two_ways(rows: Sequence[Sequence[list[str]]], vocabulary: SentenceVocabulary) -> TwoWays:
    """Sentences one after the other in each row, as each direction reads them; shorter rows are filled up."""
    index: dict[str, int] = {BOS: 0, EOS: 1}
    inputs: list[list[np.ndarray]] = [[], []]
    targets: list[list[np.ndarray]] = [[], []]
    for row in rows:
        for d, (first, last) in enumerate(((BOS, EOS), (EOS, BOS))):
            read = [sentence[::-1] if d else sentence for sentence in row]
            numbers = [index.setdefault(word, len(index)) for words in read for word in (first, *words)]
            inputs[d].append(np.array(numbers))
            targets[d].append(vocabulary.ids(word for words in read for word in (*words, last)))
    end = vocabulary.end
    return TwoWays(
        list(index),
        np.stack([side_by_side(each, 0).T for each in inputs]),
        np.stack([side_by_side(each, end).T for each in targets]),
    )
