"""Language models as a user has them: a network with its vocabulary and its way of reading text.

model = LanguageModel.from_pretrained("models/shakespeare")
model.generate("ROMEO:", limit=200)
model.perplexity("To be, or not to be")
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from relmo.errors import ModelError, SettingError
from relmo.models.beam_search import BeamStep
from relmo.models.evaluate import Score, total_nll
from relmo.models.generate import Draws, Sampling, search_texts, step_together
from relmo.models.predictors import StreamPredictor
from relmo.models.saved import About, SavedFolder, SavedModel, layers_of
from relmo.models.surprisal import Texts, WordSurprisal, given_texts, surprisal_rows
from relmo.models.word_tables import SurprisalTable
from relmo.networks import make_language_model
from relmo.networks.language_model import Encoder, NeuralLM, RecurrentLM
from relmo.networks.ngram import NGramLM
from relmo.nn.cells import State
from relmo.settings.arguments import check_seed, check_text, check_whole
from relmo.settings.lm import LMSettings
from relmo.settings.surprisal import SurprisalOptions
from relmo.store.folder import pick_device
from relmo.text.encode import encode_file, encode_text
from relmo.text.sources import SourceText
from relmo.text.tokenize import join
from relmo.text.vocabulary import Vocabulary

SIDE_BY_SIDE = 4 << 30  # bytes that texts may take while they are made
FLOAT, KEPT = 4, 1000  # bytes of a number, and of a text's own lists and strings


@dataclass(frozen=True)
class Text:
    """A generated text with its prompt. `log_prob` and `symbols` are of what was added; `ended` says whether the text
    ended by itself."""

    text: str
    log_prob: float
    symbols: int
    ended: bool


class LanguageModel(SavedModel):
    """A network, its vocabulary and its settings; one method per verb of the command line."""

    kind = "lm"
    network: NeuralLM | NGramLM
    settings: LMSettings
    vocabulary: Vocabulary

    def __init__(
        self,
        network: NeuralLM | NGramLM,
        vocabulary: Vocabulary,
        settings: LMSettings,
        device: torch.device | str = "cpu",
    ):
        self.device = torch.device(device)
        self.network = network.to(self.device).eval()
        self.vocabulary = vocabulary
        self.settings = settings

    @classmethod
    def restore(cls, saved: SavedFolder, device: str) -> "LanguageModel":
        settings, vocabulary = saved.settings(cls.kind), saved.vocabulary(Vocabulary)
        network = saved.network(lambda: make_language_model(settings.model, len(vocabulary), saved.config.get("sizes")))
        if isinstance(network, NGramLM) and not network.is_sound:
            raise ModelError(f"{saved.path}: the tables of its n-grams hold no probabilities; restore it from a copy")
        return cls(network, vocabulary, settings, pick_device(device))

    def config(self) -> dict[str, Any]:
        """Of an n-gram model, the sizes of its tables too."""
        return super().config() | ({"sizes": self.network.sizes} if isinstance(self.network, NGramLM) else {})

    def geometry(self) -> str:
        model, unit = self.settings.model, "characters" if self.settings.text.unit == "char" else "words"
        if model.cell == "ngram":
            network = f"{model.order}-gram model"
        elif model.cell == "feedforward":
            network = f"feedforward network of {model.hidden} units that reads {model.order - 1} symbols"
        else:
            network = f"{model.cell}, {layers_of(model.layers, model.hidden)}"
        return f"{network}, {len(self.vocabulary):,} {unit}"

    def about(self, name: str) -> About:
        return About(
            f"A {self.settings.model.cell} language model over {self.settings.text.unit}s, made with relmo.",
            [f"- vocabulary: {len(self.vocabulary):,} symbols", f"- parameters: {self.parameter_count():,}"],
            ["```", f"relmo generate {name}", "```"],
        )

    @property
    def encoder(self) -> Encoder:
        """The embedding and the recurrent layers with their trained weights. Another network can start from them (Dai &
        Le 2015)."""
        if not isinstance(self.network, RecurrentLM):
            raise ModelError(f"a {self.settings.model.cell} model has no recurrent encoder; train one with --cell lstm")
        return self.network.encoder

    def encode(self, text: str) -> np.ndarray:
        """The ids of a text's symbols."""
        check_text(text)
        return self.vocabulary.ids(encode_text(text, self.settings.text))

    def count_symbols(self, sentence: str | Sequence[str]) -> int:
        """Return how many symbols (characters or tokens) the model reads for a string or a list of words."""
        if isinstance(sentence, str):
            return len(encode_text(sentence, self.settings.text))
        return sum(map(len, sentence)) + len(sentence) if self.settings.text.unit == "char" else len(sentence)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; words are joined as they are written."""
        symbols = [self.vocabulary.symbols[i] for i in ids]
        if self.settings.text.unit == "char":
            return "".join(symbols)
        put = join if self.settings.text.tokenizer == "words" else " ".join
        return "\n".join(put(line) for line in _split_lines(symbols))

    def step(self, ids: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Reads one symbol of each row (B,). -> log-probabilities (B, V) of the next symbol, and the new state."""
        with torch.no_grad():
            return self.network.step(ids, self.network.initial_state(len(ids)) if state is None else state)

    def perplexity(self, text: str) -> float:
        """The perplexity of a text, read from its beginning; its end is predicted too."""
        ids = np.concatenate([[self.vocabulary.end], self.encode(text), [self.vocabulary.end]])
        nll = total_nll(self.network, ids, lanes=1, device=self.device)
        return Score(len(ids) - 1, len(text), 0, nll).perplexity

    def evaluate(
        self, file: str | Path, *, lanes: int = 16, watch: Callable[[int, int], object] | None = None
    ) -> Score:
        """The score of a file. Every symbol is predicted once, with the state carried through; `lanes` changes the
        speed only. `watch` is told, as it goes, how many more symbols were scored and how many there are."""
        with tempfile.TemporaryDirectory() as scratch:
            stream = encode_file(str(file), self.settings.text, self.vocabulary, Path(scratch))
            told = None if watch is None else lambda scored: watch(scored, stream.predictions)
            nll = total_nll(self.network, stream.ids, lanes=lanes, device=self.device, watch=told)
            return Score(stream.predictions, stream.characters, stream.unknown, nll)

    def surprisal(
        self,
        text: Texts,
        *,
        context: Literal["text", "sentence"] = "text",
        rows: Literal["words", "whitespace"] | None = None,
        space: Literal["after", "before"] | None = None,
        ends: bool = False,
    ) -> SurprisalTable:
        """A row a word: where it stands, its surprisal in bits, the entropy before it, whether it is unknown.

        text      a string, whose lines are sentences; or sentences in a list, each a string or a list of words
        context   "text": the state is carried from line to line; "sentence": each is read by itself
        rows      what a row is: "words" as relmo's tokenizer splits text, or what stands between "whitespace"; the
                  model's own tokenizer where it is not given
        space     of models of characters: the white space "after" a word counts to it (where it is not given), or that
                  "before" it
        ends      whether the ends of lines and texts are rows, too
        """
        options = SurprisalOptions(context=context, rows=rows, space=space, ends=ends)
        return SurprisalTable.of(self.surprisal_rows(given_texts(text), options), ends=ends)

    def surprisal_rows(self, texts: Iterable[SourceText], options: SurprisalOptions) -> Iterator[WordSurprisal]:
        """The rows of texts of any size as they come, those of ends always."""
        predictor = StreamPredictor(self.network, self.vocabulary, self.settings.text, options, self.device)
        return surprisal_rows(predictor, texts, options)

    def generate(
        self,
        prompt: str = "",
        *,
        limit: int = 500,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        beams: int | None = None,
        seed: int = 0,
        unknown: bool = False,
    ) -> str:
        """One text that begins with the prompt.

        limit         the most symbols to add, characters or words; the text may end by itself before that
        temperature   below 1 the probable becomes more probable, above 1 everything evens out; 0 is greedy
        top_k, top_p  choose among the k most probable symbols; among those that together hold probability p
        beams         look for the most probable text with so many beams, and sample nothing
        seed          the same seed gives the same text
        unknown       let <unk> come up, too
        """
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
        if beams is None:
            *_, texts = self.stream(prompt, limit=limit, seed=seed, unknown=unknown, **vars(sampling))
            return texts[0].text
        if sampling != Sampling():
            raise SettingError("beam search does not sample; leave out temperature, top_k and top_p")
        return self.search(prompt, beams=beams, limit=limit, unknown=unknown)[0].text

    def stream(
        self,
        prompt: str = "",
        *,
        limit: int = 500,
        samples: int = 1,
        seed: int = 0,
        unknown: bool = False,
        **sampling: Any,
    ) -> Iterator[list[Text]]:
        """Yields all samples as they grow, one symbol at a time. `sampling` is temperature, top_k and top_p. <unk> is
        drawn only with `unknown`."""
        return self._grow(self.growing(prompt, limit=limit, samples=samples, seed=seed, unknown=unknown, **sampling))

    def _grow(self, growing: "GrowingTexts") -> Iterator[list[Text]]:
        while not growing.draws.done:
            (texts,) = grow_together(self, [growing])
            if texts is not None:
                yield texts

    def growing(
        self, prompt: str, *, limit: int, samples: int = 1, seed: int = 0, unknown: bool = False, **sampling: Any
    ) -> "GrowingTexts":
        """Samples that are about to grow, for `grow_together`; the options are those of `stream`."""
        ids = self.encode(prompt).tolist()
        check_whole("limit", limit)
        check_seed(seed)
        self._check_rows("samples", samples)
        draws = Draws(
            self.network,
            [self.vocabulary.end, *ids],
            rows=samples,
            limit=limit,
            end=self.vocabulary.end,
            banned=[] if unknown else [self.vocabulary.unknown],
            sampling=Sampling(**sampling),
            generator=torch.Generator(self.device).manual_seed(seed),
        )
        return GrowingTexts(self, ids, draws)

    def _check_rows(self, name: str, rows: int) -> None:
        """An error where so many texts do not fit into memory side by side: a few numbers for every symbol of the
        vocabulary, and what Python keeps, for each text."""
        check_whole(name, rows)
        state = sum(tensor.numel() for tensor in self.network.initial_state(1))
        most = max(1, SIDE_BY_SIDE // (FLOAT * (4 * len(self.vocabulary) + 2 * state) + KEPT))
        if rows > most:
            raise SettingError(
                f"{name} is {rows:,}; this model makes at most {most:,} texts side by side; ask for fewer, and for "
                "more with another seed"
            )

    def search(
        self,
        prompt: str = "",
        *,
        beams: int = 5,
        limit: int = 500,
        unknown: bool = False,
        watch: Callable[[BeamStep], object] | None = None,
    ) -> list[Text]:
        """The most probable texts that begin with the prompt, by beam search, best first. `watch` is told what each
        step of the search has done."""
        ids = self.encode(prompt).tolist()
        check_whole("limit", limit)
        self._check_rows("beams", beams)
        found = search_texts(
            self.network,
            [self.vocabulary.end, *ids],
            beams=beams,
            limit=limit,
            end=self.vocabulary.end,
            banned=[] if unknown else [self.vocabulary.unknown],
            device=self.device,
            watch=watch,
        )
        return [Text(self.decode([*ids, *beam.ids]), beam.log_prob, len(beam.ids), beam.ended) for beam in found]


class GrowingTexts:
    """Samples from one prompt while they grow."""

    def __init__(self, model: LanguageModel, prompt: list[int], draws: Draws):
        self.model, self.prompt, self.draws = model, prompt, draws
        self.added: list[list[int]] = [[] for _ in range(draws.rows)]
        self.log_probs, self.ended = [0.0] * draws.rows, [False] * draws.rows

    def add(self) -> list[Text]:
        """Draws a symbol for each. -> the texts as they are now"""
        for row, (symbol, score) in enumerate(zip(*self.draws.draw(), strict=True)):
            if not self.ended[row]:
                self.log_probs[row] += score
                self.ended[row] = symbol == self.draws.end
                self.added[row] += [] if self.ended[row] else [symbol]
        return [
            Text(self.model.decode([*self.prompt, *new]), log_prob, len(new), end)
            for new, log_prob, end in zip(self.added, self.log_probs, self.ended, strict=True)
        ]


def grow_together(model: LanguageModel, several: Sequence[GrowingTexts]) -> list[list[Text] | None]:
    """Lets the texts of several prompts grow by a symbol, all in one batch. -> the texts of each as they are now; None
    where a prompt is still being read"""
    step_together(model.network, [each.draws for each in several])
    return [None if each.draws.log_probs is None else each.add() for each in several]


def _split_lines(symbols: list[str]) -> Iterator[list[str]]:
    line: list[str] = []
    for symbol in symbols:
        if symbol == "\n":
            yield line
            line = []
        else:
            line.append(symbol)
    yield line
