"""Bidirectional language models as a user has them: a network with its vocabulary and its way of reading text.

elmo = relmo.load("models/mine")
vectors = elmo.embed(["The bank of the river .", "A bank lends money ."])
"""

import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from relmo.embedding.engine import CutWords, Embedder, pool, windows
from relmo.errors import ModelError, SettingError, shown
from relmo.models.evaluate import BiScore, bilm_nll, full_precision
from relmo.models.predictors import SentencePredictor
from relmo.models.saved import About, SavedFolder, SavedModel, layers_of
from relmo.models.surprisal import Texts, WordSurprisal, given_texts, surprisal_rows
from relmo.models.word_tables import SurprisalTable
from relmo.networks.bilm import BiLMNetwork, DictionaryEncoder, DictionarySizes
from relmo.nn.locks import fork_safe_lock
from relmo.nn.quantize import PRECISIONS, Precision
from relmo.settings.arguments import check_sentences, check_text
from relmo.settings.bilm import BiLMModelSettings, BiLMSettings
from relmo.settings.bounds import parse_filters
from relmo.settings.embedding import Carry, EmbedOptions, Layers
from relmo.settings.surprisal import SurprisalOptions
from relmo.store.folder import pick_device
from relmo.store.many_langs import sizes_of
from relmo.text.characters import BOS, EOS, Spellings
from relmo.text.dictionaries import Dictionaries, Dictionary
from relmo.text.encode import TOKENIZERS
from relmo.text.sentences import encode_sentence_file
from relmo.text.sources import SourceText
from relmo.text.vocabulary import SentenceVocabulary, Vocabulary
from relmo.training.batch import BiText

CHARACTERS, WORDS = "characters-vocabulary.txt", "words-vocabulary.txt"  # the dictionaries of a model that has them
LARGEST_WORD_DIM = 1 << 16
READ_BY = {"char": "characters", "word": "numbers", "dictionary": "numbers and their characters"}
SCORED_AT_ONCE = 8192  # words whose probabilities are computed together
MAKING = fork_safe_lock()  # held while a model's engine is made: all threads get the same one


class BiLM(SavedModel):
    """A network, its settings and, where it can predict words, its vocabulary; one method per verb of the command line.

    `vocabulary` is None for original ELMo files, which hold no output layer. `precision` is that of the LSTMs' products
    in `embed`: "float32"; "bfloat16", twice as fast where the processor computes in it; or, on a CPU, "int8", which is
    faster still. It can be changed at any time and applies to calls that begin after that. Everything else (`evaluate`,
    training) is in float32. `dictionaries` are those of a model from ELMoForManyLangs.

    A loaded model may be used from any thread and gives the same numbers. Threads take turns at computing vectors.
    """

    kind = "bilm"
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
        """The precision of the LSTMs' products in `embed`."""
        return self._precision

    @precision.setter
    def precision(self, name: Precision) -> None:
        if name not in PRECISIONS:
            raise SettingError(f"precision is {name!r}; it can be {', '.join(map(repr, PRECISIONS))}")
        if name == "int8" and self.device.type != "cpu":
            raise SettingError(f"precision 'int8' is for CPUs, and the device is {self.device}; take 'bfloat16' there")
        with MAKING:
            self._precision = name
            if "embedder" in vars(self):
                self.embedder.precision = name

    @classmethod
    def restore(cls, saved: SavedFolder, device: str) -> "BiLM":
        settings, size = saved.settings(cls.kind), saved.config.get("vocab_size")
        vocabulary = None if size is None else saved.vocabulary(SentenceVocabulary, what="words")
        if vocabulary is None and settings.model.input == "word":
            raise saved.damaged("a model with word input needs a vocab_size")
        dictionaries, sizes = _restore_dictionaries(saved) if settings.model.input == "dictionary" else (None, None)
        network = saved.network(lambda: BiLMNetwork(settings.model, vocab_size=size, dictionaries=sizes))
        return cls(network, settings, vocabulary, pick_device(device), dictionaries=dictionaries)

    def config(self) -> dict[str, Any]:
        encoder = self.network.encoder
        if self.dictionaries is None or not isinstance(encoder, DictionaryEncoder):
            return super().config()
        sizes = sizes_of(self.dictionaries, 0 if encoder.words is None else encoder.words.embedding_dim)
        return super().config() | {"characters": sizes.characters, "words": sizes.words, "word_dim": sizes.word_dim}

    def vocabulary_files(self) -> dict[str, Vocabulary]:
        files = super().vocabulary_files()
        if self.dictionaries is not None:
            files[CHARACTERS] = self.dictionaries.characters
            files |= {} if self.dictionaries.words is None else {WORDS: self.dictionaries.words}
        return files

    def geometry(self) -> str:
        model = self.settings.model
        layers = f"{layers_of(model.layers, model.hidden)} each way, projected to {model.projection}"
        predicts = "" if self.vocabulary is None else f", predicts {len(self.vocabulary):,} words"
        return f"reads words by their {READ_BY[model.input]}, {layers}{predicts}"

    def about(self, name: str) -> About:
        model = self.settings.model
        facts = [
            f"- reads words by their {READ_BY[model.input]}",
            f"- {layers_of(model.layers, model.hidden)} each way, projected to {model.projection}",
            f"- parameters: {self.parameter_count():,}",
        ]
        facts += [] if self.vocabulary is None else [f"- predicts: {len(self.vocabulary):,} words"]
        example = ["```", f"relmo embed text.txt --model {name} --out vectors.h5", "```"]
        return About("A bidirectional LSTM language model (ELMo), made with relmo.", facts, example)

    def tokens(self, text: str) -> list[str]:
        """Splits raw text into words."""
        text = check_text(text).lower() if self.settings.text.lowercase else check_text(text)
        return TOKENIZERS[self.settings.text.tokenizer](text)

    def count_symbols(self, sentence: str | Sequence[str]) -> int:
        """Return the number of tokens of a string or a list of words."""
        return len(self.tokens(sentence) if isinstance(sentence, str) else sentence)

    @cached_property
    def embedder(self) -> Embedder:
        """The engine behind `embed`, with the words it has seen and the carried states."""
        with MAKING:
            if "embedder" not in vars(self):  # another thread may have been here first
                vars(self)["embedder"] = Embedder(
                    self.network,
                    max_characters=self.settings.model.max_characters,
                    vocabulary=self.vocabulary,
                    dictionaries=self.dictionaries,
                    precision=self.precision,
                )
            return vars(self)["embedder"]

    def __getstate__(self) -> dict[str, Any]:
        """A copy of the model has everything but the engine: it makes its own."""
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
        """Contextual vectors of sentences: a float32 array each, (layers, tokens, dim) or, of one layer, (tokens, dim).

        sentences           strings, split as `tokens` splits them, or lists of tokens, which are kept as they are
        layers              "all": the words' own vectors (0), then each LSTM's; a number; "top"; or "average" of all
        state               "reset": a sentence starts from zero; its vectors depend on nothing but itself. "carry": row
                            r of a batch goes on where row r of the batch before ended, also over calls, until
                            `reset_states`, as in the original tools. "warmup": like "carry" from zero, but the first
                            batch is run once before, for its states. All threads share one set of carried states, and
                            their batches go on from each other as they come; a thread with a text of its own takes a
                            copy of the model (`copy.copy`, which shares the weights)
        batch_size          most sentences side by side; "carry" and "warmup" need it
        tokens_per_batch    most tokens side by side (a longer sentence is still read whole)

        The LSTMs' products are done in the model's `precision`; the arrays are float32 whatever it is.

        Long sentences are never cut: they are read in pieces, with the exact state carried. A word with more bytes than
        the model reads is cut; a warning says how many were. What depends on a word alone is kept for the next call.
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
        """As `embed`, but from any iterable and in bounded memory: one array after another, in the order of the input.
        It reads some thousands of tokens ahead, to sort sentences by length."""
        options = EmbedOptions(layers=layers, state=state, batch_size=batch_size, tokens_per_batch=tokens_per_batch)
        return self._embed(sentences, options)

    def _embed(
        self, sentences: Iterable[str | Sequence[str]], options: EmbedOptions, precision: Precision | None = None
    ) -> Iterator[np.ndarray]:
        sentences = check_sentences(sentences, "embed")
        cut = self.embedder.cut_words()
        tokens = (self.tokens(sentence) if isinstance(sentence, str) else sentence for sentence in sentences)
        return _warned(self.embedder.stream(tokens, options, cut, precision or self.precision), cut)

    def reset_states(self) -> None:
        """The next `embed(state="carry")` starts from zero."""
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
        """One vector a sentence: the mean or the maximum over its own tokens; float32 (N, dim), or (N, layers, dim)
        with layers="all". A sentence without tokens gives zeros. The other options are those of `embed`."""
        options = EmbedOptions(layers=layers, state=state, batch_size=batch_size, tokens_per_batch=tokens_per_batch)
        pooled = [pool(vectors, pooling) for vectors in self._embed(sentences, options)]
        shape = (self.network.layer_count, self.network.size) if layers == "all" else (self.network.size,)
        return np.stack(pooled) if pooled else np.zeros((0, *shape), dtype=np.float32)

    def evaluate(
        self, file: str | Path, *, lanes: int = 16, watch: Callable[[int, int], object] | None = None
    ) -> BiScore:
        """The score of a file. Every word is predicted once in each direction, with the state carried through; `lanes`
        changes the speed only. `watch` is told, as it goes, how many more words were scored and how many there are."""
        vocabulary = self.output_words()
        with tempfile.TemporaryDirectory() as scratch:
            encoded = encode_sentence_file(str(file), self.settings.text, vocabulary, Path(scratch))
            words, steps = encoded.sentences.words, encoded.sentences.predictions
            text = bilm_text(words, encoded.lexicon, vocabulary, self.settings.model, self.device)
            told = None if watch is None else lambda scored: watch(scored, steps)
            return BiScore(steps, encoded.sentences.unknown, *bilm_nll(self.network, text, lanes=lanes, watch=told))

    def surprisal(
        self,
        text: Texts,
        *,
        context: Literal["text", "sentence"] = "text",
        direction: Literal["forward", "backward"] = "forward",
        rows: Literal["words", "whitespace"] | None = None,
        ends: bool = False,
    ) -> SurprisalTable:
        """A row a word: where it stands, its surprisal in bits, the entropy before it, whether it is unknown.

        text        a string, whose lines are sentences; or sentences in a list, each a string or a list of words
        context     "text": the state is carried from sentence to sentence; "sentence": each is read by itself
        direction   a word given those before it ("forward"), or given those after it ("backward")
        rows        what a row is: "words" as relmo's tokenizer splits text, or what stands between "whitespace"; the
                    model's own tokenizer where it is not given
        ends        whether the ends (backwards, the beginnings) of sentences are rows, too
        """
        options = SurprisalOptions(context=context, direction=direction, rows=rows, ends=ends)
        return SurprisalTable.of(self.surprisal_rows(given_texts(text), options), ends=ends)

    def surprisal_rows(self, texts: Iterable[SourceText], options: SurprisalOptions) -> Iterator[WordSurprisal]:
        """The rows of texts of any size as they come, those of ends always."""
        predictor = SentencePredictor(self.network, self.output_words(), self.settings, options, self.device)
        return surprisal_rows(predictor, texts, options)

    def log_probs(
        self,
        sentences: Iterable[str | Sequence[str]],
        *,
        direction: Literal["both", "forward", "backward"] = "both",
    ) -> list[np.ndarray]:
        """Exact log-probabilities of the words of sentences, each read from zero: float32 (2, words + 1) a sentence, or
        (words + 1,) of one direction, in the order of the text.

        The forward ones are of each word given the words before it, and of the sentence's end. The backward ones are of
        the sentence's beginning, and of each word given the words after it. So the words are [:-1] forwards and [1:]
        backwards, and a sum is that of a whole sentence. All words that are not in the vocabulary share one
        probability, that of <UNK>. Sentences are given as to `embed` and read in the model's `precision`.
        """
        if direction not in ("both", "forward", "backward"):
            raise SettingError(f"direction is {direction!r}; it can be 'both', 'forward' or 'backward'")
        sentences = check_sentences(sentences, "log_probs")
        vocabulary = self.output_words()
        chosen = {"both": (0, 1), "forward": (0,), "backward": (1,)}[direction]
        tokens = (self.tokens(sentence) if isinstance(sentence, str) else sentence for sentence in sentences)
        found: list[np.ndarray] = []
        precision = self.precision
        for window in windows(tokens, SCORED_AT_ONCE):
            tops = list(self._embed(window, EmbedOptions(layers="top"), precision))
            ends = self.embedder.first_outputs(precision).cpu().numpy()
            both = [self._log_probs(window, tops, ends, vocabulary, side) for side in chosen]
            found += [np.stack(sides) if direction == "both" else sides[0] for sides in zip(*both, strict=True)]
        return found

    def _log_probs(
        self,
        sentences: Sequence[Sequence[str]],
        tops: list[np.ndarray],
        ends: np.ndarray,
        vocabulary: SentenceVocabulary,
        direction: int,
    ) -> list[np.ndarray]:
        """One direction's, from the top layer (words, 2P) of each sentence and the top layer (2, P) at the
        boundaries."""
        assert self.network.softmax is not None
        boundary = ends[direction : direction + 1]  # (1, P)
        outputs, targets = [], []
        for words, top in zip(sentences, tops, strict=True):
            forward, backward = np.split(top, 2, axis=1)
            outputs += [boundary, forward] if direction == 0 else [backward, boundary]
            targets.append(vocabulary.ids([*words, EOS] if direction == 0 else [BOS, *words]))
        x, y, places = distinct_rows(np.concatenate(outputs), np.concatenate(targets))
        with torch.no_grad(), full_precision():
            on_device = (torch.from_numpy(array).to(self.device) for array in (x, y))
            log_p = -self.network.softmax.nll(*on_device).cpu().numpy()[places]
        return np.split(log_p, np.cumsum([len(words) + 1 for words in sentences])[:-1])

    @property
    def has_output_layer(self) -> bool:
        """Whether the model can predict words: `evaluate`, `surprisal` and `log_probs` need this."""
        return self.vocabulary is not None and self.network.softmax is not None

    def output_words(self) -> SentenceVocabulary:
        """The vocabulary; an error where the model does not predict words."""
        if self.vocabulary is None:
            if self.dictionaries is not None:
                raise ModelError("the model has no output layer to predict words with (ELMoForManyLangs stores none)")
            raise ModelError(
                "the model has no output layer to predict words with (original ELMo files hold none); "
                "make one on your text: relmo train bilm TEXT --init MODEL --out DIR"
            )
        return self.vocabulary


def _restore_dictionaries(saved: SavedFolder) -> tuple[Dictionaries, DictionarySizes]:
    """Those that a folder holds, and their sizes."""
    dim = saved.config.get("word_dim")
    if type(dim) is not int or not 0 <= dim <= LARGEST_WORD_DIM:
        raise saved.damaged(f"word_dim is {shown(dim)}")
    characters = saved.vocabulary(Dictionary, CHARACTERS, key="characters", what="characters")
    words = saved.vocabulary(Dictionary, WORDS, key="words", what="words") if dim else None
    found = Dictionaries(characters, words)
    if found.missing():
        raise ModelError(f"{saved.path}: {CHARACTERS} has no {', '.join(found.missing())}")
    return found, sizes_of(found, dim)


def _warned(vectors: Iterator[np.ndarray], cut: CutWords) -> Iterator[np.ndarray]:
    """The vectors; after the last, a warning where words were cut."""
    yield from vectors
    if cut.count:
        warnings.warn(cut.message(), stacklevel=3)


def bilm_text(
    words: np.ndarray,
    lexicon: list[str],
    vocabulary: SentenceVocabulary,
    settings: BiLMModelSettings,
    device: torch.device,
) -> BiText:
    """Sentences as numbers in a lexicon, made ready for a network of these settings."""
    if settings.input == "dictionary":
        raise ModelError("a model of ELMoForManyLangs gives vectors but no probabilities of words; use another model")
    if settings.input == "word":
        return BiText(words, vocabulary, spellings=None, device=device)
    widest = max(width for width, _ in parse_filters(settings.filters))
    spellings = Spellings(lexicon, settings.max_characters)
    return BiText(words, vocabulary, spellings=spellings, margin=widest, device=device)


def distinct_rows(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct pairs of a row of x (N, P) and a number of y (N,), and which pair stands at each place (N,).
    Sentences that begin, or end, with the same words predict the same things from the same outputs."""
    index: dict[bytes, int] = {}
    rows = np.concatenate([x.astype(np.float32, copy=False).view(np.uint8), y[:, None].view(np.uint8)], axis=1)
    places = np.fromiter((index.setdefault(row.tobytes(), len(index)) for row in rows), dtype=np.int64, count=len(rows))
    _, first = np.unique(places, return_index=True)
    return x[first], y[first], places
