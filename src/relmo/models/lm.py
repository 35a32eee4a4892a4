"""Language models: a network with its vocabulary and its text settings."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from torch.nn.utils.rnn import pad_sequence

from relmo.errors import ModelError, SettingError
from relmo.models.adapt import LineAdapter
from relmo.models.evaluate import Score, total_nll
from relmo.models.generate import BeamOptions, BeamStep, SampleBatch, Sampling, Text, beam_search, step_batch
from relmo.models.saved import SavedFolder, describe_layers
from relmo.models.sequence_model import FileParts, Reading, SequenceModel
from relmo.models.surprisal import ReadLine, Rows, Texts, read_line, score_windows
from relmo.networks import make_language_model
from relmo.networks.language_model import Encoder, NeuralLM, RecurrentLM
from relmo.networks.ngram import NGramLM
from relmo.nn.recurrence import State
from relmo.settings.fields import check_integer, check_seed
from relmo.settings.lm import LMSettings
from relmo.settings.options import SurprisalOptions
from relmo.store.folder import pick_device
from relmo.text.encode import encode_file, encode_text, join_symbols
from relmo.text.sources import SourceText
from relmo.text.vocabulary import END, Vocabulary
from relmo.training.batch import move_to_device

MAX_BATCH_BYTES = 4 << 30  # for texts that are generated in parallel
FLOAT_BYTES, TEXT_BYTES = 4, 1000  # of a number, and of the Python objects of a text


class LanguageModel(SequenceModel):
    """Language model: a network, its vocabulary and its settings, with one method per command."""

    kind = "lm"
    can_generate = True
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
            raise ModelError(f"{saved.path}: its n-gram tables are not probabilities; restore it from a copy")
        return cls(network, vocabulary, settings, pick_device(device))

    def config(self) -> dict[str, Any]:
        return super().config() | ({"sizes": self.network.sizes} if isinstance(self.network, NGramLM) else {})

    def geometry(self) -> str:
        model, unit = self.settings.model, "characters" if self.settings.text.unit == "char" else "words"
        if model.cell == "ngram":
            network = f"{model.order}-gram model"
        elif model.cell == "feedforward":
            network = f"feedforward network of {model.hidden} units that reads {model.order - 1} symbols"
        else:
            network = f"{model.cell}, {describe_layers(model.layers, model.hidden)}"
        return f"{network}, {len(self.vocabulary):,} {unit}"

    @property
    def encoder(self) -> Encoder:
        """Embedding and recurrent layers with their weights, from which another network can start (Dai & Le 2015)."""
        if not isinstance(self.network, RecurrentLM):
            raise ModelError(f"a {self.label} model has no recurrent encoder; train one with --cell lstm")
        return self.network.encoder

    @property
    def label(self) -> str:
        return self.settings.model.cell

    @property
    def is_recurrent(self) -> bool:
        return isinstance(self.network, RecurrentLM)

    @property
    def input_table(self) -> Tensor:
        return self.get_recurrent_network().encoder.embedding.weight

    @property
    def bottleneck(self) -> nn.Linear | None:
        return self.get_recurrent_network().bottleneck

    def with_initial_weights(self) -> "LanguageModel":
        network = make_language_model(self.settings.model, len(self.vocabulary))
        return LanguageModel(network, self.vocabulary, self.settings, self.device)

    def tokens(self, text: str) -> list[str]:
        """Split raw text into symbols (characters or tokens)."""
        return encode_text(text, self.settings.text)

    def target_symbols(self, text: str | Sequence[str], *, is_sentence: bool) -> list[str]:
        if self.unit == "char":
            # A word ends with a space; otherwise "admire" would be as probable as everything that begins with it.
            characters = text if isinstance(text, str) else " ".join(text)
            return self.tokens(characters + ("\n" if is_sentence else " "))
        if isinstance(text, str):
            words = self.tokens(text)
        else:
            words = [word.lower() if self.settings.text.lowercase else word for word in text]
        line_end = "\n" if "\n" in self.vocabulary.index else END
        return [*words, *([line_end] if is_sentence else [])]

    def recurrent_inputs(self, texts: Sequence[Sequence[str]], *, boundary: bool = True) -> Tensor:
        ids = np.full((len(texts), max(map(len, texts)) + boundary), self.vocabulary.end, dtype=np.int64)
        for row, text in zip(ids, texts, strict=True):
            row[boundary : len(text) + boundary] = self.vocabulary.ids(text)
        with torch.no_grad():
            return embedding(torch.from_numpy(ids).to(self.device), self.input_table).transpose(0, 1).unsqueeze(0)

    def make_reading(self, text: Texts, direction: str = "forward") -> Reading:
        if direction != "forward":
            raise ModelError("Only bidirectional language models have a backward direction.")
        end = self.vocabulary.end
        texts = ([*self.vocabulary.ids(symbols), end] for symbols in self.split_texts(text))
        return StreamReading(self, np.concatenate([[end], *texts]))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; words are joined with the usual spacing."""
        return join_symbols([self.vocabulary.symbols[i] for i in ids], self.settings.text)

    def step(self, ids: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Read one symbol of each row (B,); return log-probabilities (B, V) of the next symbol, and the new state."""
        with torch.no_grad():
            return self.network.step(ids, self.network.initial_state(len(ids)) if state is None else state)

    def perplexity(self, text: str) -> float:
        """Return the perplexity of a text, including its end."""
        ids = np.concatenate([[self.vocabulary.end], self.encode(text), [self.vocabulary.end]])
        nll = total_nll(self.network, ids, lanes=1, device=self.device)
        return Score(len(ids) - 1, len(text), 0, nll).perplexity

    def open_file(self, file: str | Path, folder: Path) -> FileParts:
        stream = encode_file(str(file), self.settings.text, self.vocabulary, folder)
        compute_nll = partial(total_nll, self.network, stream.ids, device=self.device)
        make_score = partial(Score, stream.predictions, stream.characters, stream.unknown)
        return [StreamReading(self, stream.ids)], compute_nll, make_score

    def read_line(self, source: SourceText, options: SurprisalOptions, *, last: bool) -> ReadLine:
        """Convert a line of a text for `score_lines`; the end of the text follows the last one."""
        ends = ["\n"] if source.ended else []
        if self.settings.text.text_per == "line":
            ends = [END]
        elif last and options.context == "text":
            ends.append(END)
        return read_line(source, self.settings.text, options, ends)

    def score_lines(
        self, rows: Rows, options: SurprisalOptions, carry: tuple[State, int] | None, adapter: LineAdapter | None = None
    ) -> tuple[np.ndarray, tuple[State, int]]:
        """Return surprisal and entropy (2, B, T), in bits, of rows of lines; `carry` is a state and the last symbol."""
        network, end = self.network, self.vocabulary.end
        state, last_id = (network.initial_state(len(rows)), end) if carry is None else carry
        ids = [
            np.concatenate([[last_id], *(self.vocabulary.ids([*line.symbols, *line.ends]) for line in row)])
            for row in rows
        ]
        padded = pad_sequence([torch.from_numpy(row.astype(np.int64)) for row in ids], True, end)
        symbols = padded.to(self.device)  # (B, T + 1)

        def read(window: slice, state: State) -> tuple[Tensor, State]:
            return network.features(symbols[:, :-1][:, window], state)

        scores, state = score_windows(read, network.log_probs, symbols[:, 1:], state, network.vocab_size, adapter)
        return scores, (state, int(ids[-1][-1]))

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
        """Generate a text that begins with the prompt.

        limit         maximum number of symbols to add; the text may end earlier
        temperature   below 1 favours probable symbols, above 1 flattens the distribution; 0 is greedy
        top_k, top_p  sample from the k most probable symbols; from those that together have probability p
        beams         search for the most probable text with this many beams instead of sampling
        seed          seed of the random numbers; the same seed gives the same text
        unknown       allow <unk>
        """
        sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
        if beams is None:
            *_, texts = self.stream(prompt, limit=limit, seed=seed, unknown=unknown, **vars(sampling))
            return texts[0].text
        if sampling != Sampling():
            raise SettingError("beam search does not sample; omit temperature, top_k and top_p")
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
        """Yield all samples after each new symbol. The options are those of `generate`."""
        texts = self.start_samples(prompt, limit=limit, samples=samples, seed=seed, unknown=unknown, **sampling)

        def extend() -> Iterator[list[Text]]:
            while not texts.done:
                step_batch(self.network, [texts])
                if texts.log_probs is not None:
                    yield texts.add()

        return extend()

    def start_samples(
        self, prompt: str, *, limit: int, samples: int = 1, seed: int = 0, unknown: bool = False, **sampling: Any
    ) -> SampleBatch:
        """Return samples at their start, for `step_batch`; the options are those of `stream`."""
        ids = self.encode(prompt).tolist()
        check_integer("limit", limit)
        check_seed(seed)
        self._check_rows("samples", samples)
        return SampleBatch(
            self.network,
            [self.vocabulary.end, *ids],
            rows=samples,
            limit=limit,
            end=self.vocabulary.end,
            banned=[] if unknown else [self.vocabulary.unknown],
            sampling=Sampling(**sampling),
            generator=torch.Generator(self.device).manual_seed(seed),
            decode=self.decode,
        )

    def _check_rows(self, name: str, rows: int) -> None:
        # a text needs a few numbers per symbol of the vocabulary, its state, and its Python objects
        check_integer(name, rows)
        state = sum(tensor.numel() for tensor in self.network.initial_state(1))
        max_rows = max(1, MAX_BATCH_BYTES // (FLOAT_BYTES * (4 * len(self.vocabulary) + 2 * state) + TEXT_BYTES))
        if rows > max_rows:
            raise SettingError(
                f"{name} is {rows:,}; this model generates at most {max_rows:,} texts at once; generate the others "
                "with another seed"
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
        """Return the most probable texts with the prompt, by beam search, best first; `watch` is called each step."""
        ids = self.encode(prompt).tolist()
        check_integer("limit", limit)
        self._check_rows("beams", beams)
        options = BeamOptions(beams, self.vocabulary.end, [] if unknown else [self.vocabulary.unknown])
        state = None
        for symbol in (self.vocabulary.end, *ids):
            log_probs, state = self.step(torch.tensor([symbol], device=self.device), state)
        assert state is not None
        limits = torch.tensor([limit])
        (results,) = beam_search(self.network.step, log_probs, state, options, limits=limits, watch=watch)
        return [Text(self.decode([*ids, *beam.ids]), beam.log_prob, len(beam.ids), beam.ended) for beam in results]


class StreamReading(Reading):
    """Steps of a language model over a text, which begins with the end of a previous one."""

    model: LanguageModel

    def __init__(self, model: LanguageModel, ids: np.ndarray):
        self.model, self.ids, self.num_steps = model, ids, len(ids) - 1

    def get_symbols(self, steps: np.ndarray) -> list[str]:
        return [self.model.vocabulary.symbols[i] for i in self.ids[steps].tolist()]

    def get_inputs(self, steps: np.ndarray) -> tuple[Tensor, Tensor]:
        inputs, targets = self._ids(steps)
        return embedding(inputs, self.model.input_table), targets

    def compute_nll(self, steps: np.ndarray, selection: np.ndarray, state: State | None) -> tuple[Tensor, State]:
        network, (inputs, targets) = self.model.network, self._ids(steps)
        if isinstance(network, NeuralLM):
            return super().compute_nll(steps, selection, state)
        nll, state = network.nll(inputs, targets, network.initial_state(len(steps)) if state is None else state)
        return nll[:, selection], state

    def read(self, steps: np.ndarray, state: State | None) -> tuple[Tensor, Tensor, State]:
        network, (inputs, targets) = self.model.network, self._ids(steps)
        assert isinstance(network, NeuralLM)
        x, state = network.features(inputs, network.initial_state(len(steps)) if state is None else state)
        return x, targets, state

    def _ids(self, steps: np.ndarray) -> list[Tensor]:
        ids = [torch.from_numpy(self.ids[places].astype(np.int64)) for places in (steps, steps + 1)]
        return move_to_device(ids, self.model.device)
