"""Bidirectional language models: a network with its vocabulary and its text settings."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding
from torch.nn.utils.rnn import pad_sequence

from relmo.embedding.engine import Embedder, pool, windows
from relmo.errors import ModelError, SettingError, quote
from relmo.models.adapt import LineAdapter
from relmo.models.evaluate import BiScore, bilm_nll, full_precision
from relmo.models.saved import CardText, SavedFolder, describe_layers
from relmo.models.sequence_model import FileParts, Reading, SequenceModel
from relmo.models.surprisal import ReadLine, Rows, Texts, read_line, score_windows
from relmo.networks.bilm import BiLMNetwork, DictionaryEncoder
from relmo.nn import fork_safe_lock
from relmo.nn.quantize import PRECISIONS, Precision
from relmo.nn.recurrence import State
from relmo.nn.recurrence.elmo_lstm import ElmoLSTM
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.settings.fields import check_sentences, check_text, parse_filters
from relmo.settings.options import Carry, EmbedOptions, Layers, SurprisalOptions
from relmo.store.folder import pick_device
from relmo.store.many_langs import dictionary_sizes
from relmo.text.characters import BOS, EOS, Dictionaries, Dictionary, Spellings
from relmo.text.encode import BOUNDARY, TOKENIZERS, encode_sentence_file
from relmo.text.sources import SourceText
from relmo.text.vocabulary import SentenceVocabulary, Vocabulary
from relmo.training.batch import BiText

CHARACTERS, WORDS = "characters-vocabulary.txt", "words-vocabulary.txt"  # of a model with dictionaries
MAX_WORD_DIM = 1 << 16
INPUT_LABELS = {"char": "characters", "word": "numbers", "dictionary": "numbers and their characters"}
SCORE_BATCH = 8192  # words whose probabilities are computed together
EMBEDDER_LOCK = fork_safe_lock()  # held while an embedder is created, so that all threads get the same one


class BiLM(SequenceModel):
    """Bidirectional language model (ELMo): a network, its settings and its vocabulary, with one method per command.

    vocabulary     None for original ELMo files, which have no output layer
    precision      precision of the products of ELMo's LSTM in `embed`: "float32"; "bfloat16", twice as fast where the
                   processor supports it; or, on a CPU, "int8", which is faster still. A change applies to later calls.
                   All else (`evaluate`, training, other cells) is computed in float32
    dictionaries   those of a model from ELMoForManyLangs

    A model may be used from any thread, with the same results. Threads take turns at computing vectors.
    """

    kind = "bilm"
    directions = ("forward", "backward")
    reads_sentences = True
    can_embed = True
    network: BiLMNetwork
    settings: BiLMSettings
    vocabulary: SentenceVocabulary | None

    def __init__(
        self,
        network: BiLMNetwork,
        settings: BiLMSettings,
        vocabulary: SentenceVocabulary | None = None,
        device: torch.device | str = "cpu",
        precision: Precision = "float32",
        *,
        dictionaries: Dictionaries | None = None,
    ):
        self.device = torch.device(device)
        self.network = network.to(self.device).eval()
        self.settings = settings
        self.vocabulary = vocabulary
        self.dictionaries = dictionaries
        self.precision = precision

    @property
    def precision(self) -> Precision:
        """Precision of the products of ELMo's LSTM in `embed`; of other cells float32."""
        return self._precision

    @precision.setter
    def precision(self, name: Precision) -> None:
        if name not in PRECISIONS:
            raise SettingError(f"unknown precision {name!r}; choose {', '.join(map(repr, PRECISIONS))}")
        if name == "int8" and self.device.type != "cpu":
            raise SettingError(f"precision 'int8' needs a CPU, but the device is {self.device}; use 'bfloat16' there")
        if name != "float32" and not isinstance(self.network.lstm, ElmoLSTM):
            raise SettingError(f"precision {name!r} is for ELMo's LSTM; this model's cell is {self.cell}")
        with EMBEDDER_LOCK:
            self._precision = name
            if "embedder" in vars(self):
                self.embedder.precision = name

    @classmethod
    def restore(cls, saved: SavedFolder, device: str) -> "BiLM":
        settings, size = saved.settings(cls.kind), saved.config.get("vocab_size")
        vocabulary = None if size is None else saved.vocabulary(SentenceVocabulary, what="words")
        if vocabulary is None and settings.model.input == "word":
            raise saved.config_error("a model with word input needs a vocab_size")
        dictionaries, sizes = None, None
        if settings.model.input == "dictionary":
            dim = saved.config.get("word_dim")
            if type(dim) is not int or not 0 <= dim <= MAX_WORD_DIM:
                raise saved.config_error(f"word_dim is {quote(dim)}")
            characters = saved.vocabulary(Dictionary, CHARACTERS, key="characters", what="characters")
            words = saved.vocabulary(Dictionary, WORDS, key="words", what="words") if dim else None
            dictionaries = Dictionaries(characters, words)
            if dictionaries.missing():
                raise ModelError(f"{saved.path}: {CHARACTERS} has no {', '.join(dictionaries.missing())}")
            sizes = dictionary_sizes(dictionaries, dim)
        network = saved.network(lambda: BiLMNetwork(settings.model, vocab_size=size, dictionaries=sizes))
        return cls(network, settings, vocabulary, pick_device(device), dictionaries=dictionaries)

    def config(self) -> dict[str, Any]:
        encoder = self.network.encoder
        if self.dictionaries is None or not isinstance(encoder, DictionaryEncoder):
            return super().config()
        sizes = dictionary_sizes(self.dictionaries, 0 if encoder.words is None else encoder.words.embedding_dim)
        return super().config() | {"characters": sizes.characters, "words": sizes.words, "word_dim": sizes.word_dim}

    def vocabulary_files(self) -> dict[str, Vocabulary]:
        files = super().vocabulary_files()
        if self.dictionaries is not None:
            files[CHARACTERS] = self.dictionaries.characters
            files |= {} if self.dictionaries.words is None else {WORDS: self.dictionaries.words}
        return files

    @property
    def cell(self) -> str:
        """Name of the recurrent cell, with the options that change its equations."""
        return "LSTM" if isinstance(self.network.lstm, ElmoLSTM) else self.network.lstm.describe()

    def geometry(self) -> str:
        model = self.settings.model
        cell = "" if isinstance(self.network.lstm, ElmoLSTM) else f"{self.cell}, "
        layers = f"{describe_layers(model.layers, model.hidden)} each way, projected to {model.projection}"
        predicts = "" if self.vocabulary is None else f", predicts {len(self.vocabulary):,} words"
        return f"reads words by their {INPUT_LABELS[model.input]}, {cell}{layers}{predicts}"

    def card_text(self, name: str) -> CardText:
        headline = f"A bidirectional {self.cell} language model (ELMo), made with relmo."
        return super().card_text(name)._replace(headline=headline)

    def tokens(self, text: str) -> list[str]:
        """Split raw text into words."""
        text = check_text(text).lower() if self.settings.text.lowercase else check_text(text)
        return TOKENIZERS[self.settings.text.tokenizer](text)

    def target_symbols(self, text: str | Sequence[str], *, is_sentence: bool) -> list[str]:
        return [*(self.tokens(text) if isinstance(text, str) else text), *([EOS] if is_sentence else [])]

    def with_initial_weights(self) -> "BiLM":
        size = None if self.vocabulary is None else len(self.vocabulary)
        network = BiLMNetwork(self.settings.model, vocab_size=size)
        return BiLM(network, self.settings, self.vocabulary, self.device, self.precision)

    def recurrent_inputs(self, texts: Sequence[Sequence[str]], *, boundary: bool = True) -> Tensor:
        assert boundary
        bounded = ([BOS, *words, EOS] for words in texts)
        arrays = map(torch.from_numpy, self.embedder.stream(bounded, EmbedOptions(layers=0)))
        vectors = [rows[:, : rows.shape[1] // 2] for rows in arrays]  # both directions read the same
        padded = torch.stack([pad_sequence(vectors), pad_sequence([rows.flip(0) for rows in vectors])])
        return padded[:, :-1].to(self.device)

    def warn_truncated(self, texts: Sequence[Sequence[str]]) -> None:
        cut = self.embedder.cut_words()
        for words in texts:
            for word in words:
                cut.add(word, 1)
        if cut.count:
            warnings.warn(cut.message(), stacklevel=3)

    def make_reading(self, text: Texts, direction: str = "forward") -> Reading:
        vocabulary, sentences = self.get_output_vocabulary(), self.split_texts(text)
        unknown = dict.fromkeys(word for words in sentences for word in words if word not in vocabulary.index)
        lexicon = [*vocabulary.symbols, *unknown]
        index = {word: i for i, word in enumerate(lexicon)}
        ids = [BOUNDARY, *(i for words in sentences for i in (*(index[word] for word in words), BOUNDARY))]
        array = np.array(ids, dtype=np.int32)
        bounded = bilm_text(array, lexicon, vocabulary, self.settings.model, self.device)
        return SentenceReading(self, bounded, lexicon, self.directions.index(direction))

    def symbol_losses(self, texts: Sequence[Sequence[str]], direction: str = "forward") -> np.ndarray:
        part = slice(1, None) if direction == "backward" else slice(-1)
        log_probs = self.log_probs(texts, direction=direction)  # type: ignore[arg-type]
        return -np.concatenate([row[part] for row in log_probs]).astype(np.float64)

    @cached_property
    def embedder(self) -> Embedder:
        """Engine of `embed`, with its word cache and the carried states."""
        with EMBEDDER_LOCK:
            if "embedder" not in vars(self):  # another thread may have created it
                vars(self)["embedder"] = Embedder(
                    self.network,
                    max_characters=self.settings.model.max_characters,
                    vocabulary=self.vocabulary,
                    dictionaries=self.dictionaries,
                    precision=self.precision,
                )
            return vars(self)["embedder"]

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes of a copy, which creates its own embedder."""
        return {name: value for name, value in vars(self).items() if name != "embedder"}

    def embed(
        self,
        sentences: Iterable[str | Sequence[str]],
        *,
        layers: Layers = "all",
        state: Carry = "reset",
        batch_size: int | None = None,
        tokens_per_batch: int | None = None,
    ) -> list[np.ndarray]:
        """Return contextual vectors: one float32 array per sentence, (layers, tokens, dim), or (tokens, dim)
        for a single layer.

        sentences           strings, which `tokens` splits, or lists of tokens
        layers              "all": the context-free vectors (0), then each layer; a number; "top"; or "average"
        state               "reset": each sentence starts from zero, so that its vectors depend on itself only. "carry":
                            row r of a batch continues from row r of the previous batch, also across calls, until
                            `reset_states`, as in the original tools. "warmup": like "carry" from zero, but the first
                            batch is run once before, for its states. All threads share the carried states; a thread
                            with a text of its own should use a copy of the model (`copy.copy` shares the weights)
        batch_size          maximum number of sentences per batch; required for "carry" and "warmup"
        tokens_per_batch    maximum number of tokens per batch (a longer sentence is still read completely)

        Products of ELMo's LSTM are computed in the model's `precision`; the arrays are always float32.

        Long sentences are not truncated: they are read in pieces, with the exact state carried. Words with more bytes
        than the model reads are truncated, with a warning. Context-free vectors of words are cached for later calls.
        """
        options = EmbedOptions(layers=layers, state=state, batch_size=batch_size, tokens_per_batch=tokens_per_batch)
        return list(self._embed(sentences, options))

    def embed_stream(
        self,
        sentences: Iterable[str | Sequence[str]],
        *,
        layers: Layers = "all",
        state: Carry = "reset",
        batch_size: int | None = None,
        tokens_per_batch: int | None = None,
    ) -> Iterator[np.ndarray]:
        """Yield the arrays of `embed` one by one, in input order and in bounded memory.

        Some thousands of tokens are read ahead, to sort sentences by length."""
        options = EmbedOptions(layers=layers, state=state, batch_size=batch_size, tokens_per_batch=tokens_per_batch)
        return self._embed(sentences, options)

    def _embed(
        self, sentences: Iterable[str | Sequence[str]], options: EmbedOptions, precision: Precision | None = None
    ) -> Iterator[np.ndarray]:
        sentences = check_sentences(sentences, "embed")
        cut = self.embedder.cut_words()
        tokens = (self.tokens(sentence) if isinstance(sentence, str) else sentence for sentence in sentences)
        vectors = self.embedder.stream(tokens, options, cut, precision or self.precision)

        def warn_truncated() -> Iterator[np.ndarray]:
            yield from vectors
            if cut.count:
                warnings.warn(cut.message(), stacklevel=3)

        return warn_truncated()

    def reset_states(self) -> None:
        """Reset the carried states: the next `embed(state="carry")` starts from zero."""
        self.embedder.reset_states()

    def sentence_vectors(
        self,
        sentences: Iterable[str | Sequence[str]],
        *,
        layers: Layers = "average",
        pooling: Literal["mean", "max"] = "mean",
        state: Carry = "reset",
        batch_size: int | None = None,
        tokens_per_batch: int | None = None,
    ) -> np.ndarray:
        """Return the mean or the maximum over the tokens of each sentence: float32 (N, dim), or (N, layers, dim)
        with layers="all".

        A sentence without tokens has a vector of zeros. The other options are those of `embed`."""
        options = EmbedOptions(layers=layers, state=state, batch_size=batch_size, tokens_per_batch=tokens_per_batch)
        pooled = [pool(vectors, pooling) for vectors in self._embed(sentences, options)]
        shape = (self.network.layer_count, self.network.size) if layers == "all" else (self.network.size,)
        return np.stack(pooled) if pooled else np.zeros((0, *shape), dtype=np.float32)

    def open_file(self, file: str | Path, folder: Path) -> FileParts:
        vocabulary = self.get_output_vocabulary()
        lexicon, sentences = encode_sentence_file(str(file), self.settings.text, vocabulary, folder)
        text = bilm_text(sentences.ids, lexicon, vocabulary, self.settings.model, self.device)
        readings = [SentenceReading(self, text, lexicon, direction) for direction in range(2)]
        compute_nll = partial(bilm_nll, self.network, text)
        return readings, compute_nll, partial(BiScore, sentences.predictions, sentences.unknown)

    def read_line(self, source: SourceText, options: SurprisalOptions, *, last: bool) -> ReadLine | None:
        """Convert a sentence for `score_lines`; return None for lines without words, which are skipped."""
        line = read_line(source, self.settings.text, options, [BOS if options.direction == "backward" else EOS])
        return line if line.symbols else None

    def score_lines(
        self, rows: Rows, options: SurprisalOptions, carry: State | None, adapter: LineAdapter | None = None
    ) -> tuple[np.ndarray, State]:
        """Return surprisal and entropy (2, B, T), in bits, of rows of sentences in reading order, and the state."""
        network, vocabulary, d = self.network, self.get_output_vocabulary(), int(options.direction == "backward")
        assert network.softmax is not None
        index: dict[str, int] = {BOS: 0, EOS: 1}
        inputs: list[Tensor] = []  # of both directions, as indices of distinct words
        targets: list[Tensor] = []
        for direction, (begin, end) in enumerate(((BOS, EOS), (EOS, BOS))):
            for row in rows:
                sentences = [line.symbols[:: -1 if direction else 1] for line in row]
                ids = [index.setdefault(word, len(index)) for words in sentences for word in (begin, *words)]
                inputs.append(torch.tensor(ids))
                if direction == d:
                    word_ids = vocabulary.ids(word for words in sentences for word in (*words, end))
                    targets.append(torch.from_numpy(word_ids.astype(np.int64)))
        lexicon = list(index)
        if self.settings.model.input == "word":
            encoded = vocabulary.ids(lexicon)
        else:
            encoded = Spellings(lexicon, self.settings.model.max_characters).ids()
        words = torch.from_numpy(encoded).to(self.device)
        vectors = network.encoder(words) if adapter is None else None  # updates change them
        x = torch.stack(pad_sequence(inputs).split(len(rows), dim=1)).to(self.device)  # (2, T, B)
        y = pad_sequence(targets, True, vocabulary.end).to(self.device)  # (B, T)

        def read(window: slice, state: State) -> tuple[Tensor, State]:
            run = network.lstm(embedding(x[:, window], network.encoder(words) if vectors is None else vectors), state)
            return run.layers[-1][d].transpose(0, 1), run.state

        state = network.initial_state(len(rows)) if carry is None else carry
        return score_windows(read, network.softmax.log_probs, y, state, len(vocabulary), adapter)

    def log_probs(
        self, sentences: Iterable[str | Sequence[str]], *, direction: Literal["both", "forward", "backward"] = "both"
    ) -> list[np.ndarray]:
        """Return exact log-probabilities of the words of sentences, each read from zero: float32 (2, words + 1) per
        sentence, or (words + 1,) for one direction, in text order.

        The forward ones are of each word given the words before it, and of the sentence's end. The backward ones are of
        the sentence's beginning, and of each word given the words after it. So the words are [:-1] forwards and [1:]
        backwards, and the sum is that of the sentence. All words outside the vocabulary share one probability, that of
        <UNK>. Sentences are given as to `embed` and read in the model's `precision`.
        """
        if direction not in ("both", "forward", "backward"):
            raise SettingError(f"unknown direction {direction!r}; choose 'both', 'forward' or 'backward'")
        sentences = check_sentences(sentences, "log_probs")
        vocabulary, softmax = self.get_output_vocabulary(), self.network.softmax
        assert softmax is not None
        tokens = (self.tokens(sentence) if isinstance(sentence, str) else sentence for sentence in sentences)
        log_probs: list[np.ndarray] = []
        precision = self.precision
        for window in windows(tokens, SCORE_BATCH):
            tops = list(self._embed(window, EmbedOptions(layers="top"), precision))  # (words, 2P) each
            boundaries = self.embedder.after_boundary(precision)[1].cpu().numpy()  # (2, P)
            bounds = np.cumsum([len(words) + 1 for words in window])[:-1]
            by_direction = []
            for d in {"both": (0, 1), "forward": (0,), "backward": (1,)}[direction]:
                boundary, outputs, targets = boundaries[d : d + 1], [], []
                for words, top in zip(window, tops, strict=True):
                    half = np.split(top, 2, axis=1)[d]
                    outputs += [half, boundary] if d else [boundary, half]
                    targets.append(vocabulary.ids([BOS, *words] if d else [*words, EOS]))
                x, y = np.concatenate(outputs), np.concatenate(targets)
                # Sentences with a common beginning, or end, predict the same words from the same outputs: the softmax
                # reads each distinct pair of an output and a target once.
                row_bytes = np.concatenate(
                    [x.astype(np.float32, copy=False).view(np.uint8), y[:, None].view(np.uint8)], 1
                )
                index: dict[bytes, int] = {}
                indices = np.array([index.setdefault(row.tobytes(), len(index)) for row in row_bytes])
                _, samples = np.unique(indices, return_index=True)
                with torch.no_grad(), full_precision():
                    on_device = (torch.from_numpy(array[samples]).to(self.device) for array in (x, y))
                    log_p = -softmax.nll(*on_device).cpu().numpy()[indices]
                by_direction.append(np.split(log_p, bounds))
            pairs = zip(*by_direction, strict=True)
            log_probs += [np.stack(pair) if direction == "both" else pair[0] for pair in pairs]
        return log_probs

    @property
    def has_output_layer(self) -> bool:
        """True if the model can predict words, as `evaluate`, `surprisal` and `log_probs` need."""
        return self.vocabulary is not None and self.network.softmax is not None

    def get_output_vocabulary(self) -> SentenceVocabulary:
        """Return the vocabulary; raise `ModelError` if the model does not predict words."""
        if self.vocabulary is None:
            if self.dictionaries is not None:
                raise ModelError("the model has no output layer (ELMoForManyLangs stores none) and predicts no words")
            raise ModelError(
                "the model has no output layer (original ELMo files have none) and predicts no words; "
                "train one on your text: relmo train bilm TEXT --init MODEL --out DIR"
            )
        return self.vocabulary


def bilm_text(
    words: np.ndarray,
    lexicon: list[str],
    vocabulary: SentenceVocabulary,
    settings: BiLMModelSettings,
    device: torch.device,
) -> BiText:
    """Return sentences, given as indices in a lexicon, as input of a network with these settings."""
    if settings.input == "dictionary":
        raise ModelError("models of ELMoForManyLangs provide vectors but no word probabilities; use another model")
    if settings.input == "word":
        return BiText(words, vocabulary, spellings=None, device=device)
    max_width = max(width for width, _ in parse_filters(settings.filters))
    spellings = Spellings(lexicon, settings.max_characters)
    return BiText(words, vocabulary, spellings=spellings, margin=max_width, device=device)


class SentenceReading(Reading):
    """Steps of one direction of a bidirectional language model over a stream of sentences; in the backward direction
    each is reversed in its place, as in training."""

    model: BiLM

    def __init__(self, model: BiLM, text: BiText, lexicon: list[str], direction: int):
        self.model, self.text, self.lexicon, self.direction = model, text, lexicon, direction
        self.num_steps = text.steps

    def get_symbols(self, steps: np.ndarray) -> list[str]:
        bounds = self.text.bounds
        sentence = np.searchsorted(bounds, steps, side="right") - 1
        ids = self.text.words[steps if self.direction == 0 else bounds[sentence + 1] - (steps - bounds[sentence])]
        boundary = (BOS, EOS)[self.direction]
        return [boundary if i == BOUNDARY else self.lexicon[i] for i in ids]

    def get_inputs(self, steps: np.ndarray) -> tuple[Tensor, Tensor]:
        window = self.text.window(np.concatenate([steps, steps[:, -1:] + 1], axis=1))
        vectors = self.model.network.encoder(window.words)[window.inputs[self.direction]]  # (T, B, I)
        return vectors.transpose(0, 1), window.targets[self.direction].transpose(0, 1)

    def read(self, steps: np.ndarray, state: State | None) -> tuple[Tensor, Tensor, State]:
        window = self.text.window(np.concatenate([steps, steps[:, -1:] + 1], axis=1))
        run = self.model.network.read(window, state)
        d = self.direction
        return run.layers[-1][d].transpose(0, 1), window.targets[d].transpose(0, 1), run.state
