"""Input features of words for the networks of tasks.

A word is looked up in the vocabulary of the training examples, in static vectors, by its characters and in a biLM. The
static vectors and the biLM are models of their own (`store/references.py`); the vocabulary is saved with the task.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from relmo.disk.files import is_file
from relmo.embedding.elmo_cache import ComputedVectors, ElmoCache, ElmoVectors, cache_folder
from relmo.embedding.engine import CutWords
from relmo.errors import SettingError
from relmo.loading import load
from relmo.models.bilm import BiLM
from relmo.models.saved import SavedFolder
from relmo.models.vectors import WordVectors
from relmo.networks.bilm import BiLMNetwork
from relmo.networks.elmo import sentence_ids, without_output
from relmo.networks.inputs import LayerSpread, WordBatch
from relmo.settings.fields import parse_filters
from relmo.settings.sections import NO_CACHE, InputSettings
from relmo.store.folder import (
    BILM_VOCABULARY,
    COPY_OF_BILM,
    COPY_OF_VECTORS,
    SkipInit,
    check_weights_size,
    pick_device,
    verify_text_file,
)
from relmo.store.references import Reference, absolute_source, bilm_digest, read_reference, vectors_digest
from relmo.text.characters import Spellings
from relmo.text.vocabulary import UNKNOWN, SentenceVocabulary, Vocabulary

MAX_GPU_SHARE = 0.25  # of the free memory of a GPU that the layers of a biLM may take
COPY_BATCH_WORDS = 1 << 16  # words whose layers are copied to a GPU together
SPREAD_SAMPLE_WORDS = 10_000  # words of the training examples that the spread of a biLM's layers is measured on
LOW_COVERAGE = 0.7  # `words` covers 97% of English web text, 83% of English tweets, 58% of French, 44% of Danish
MARGIN = 1  # columns of padding that spellings keep beyond those of the widest filter

Words = Sequence[str]
MessageCallback = Callable[[str], object]


class WordVocabulary(Vocabulary):
    """Words of the training examples; id 0 stands for all other words."""

    specials = (UNKNOWN,)


def count_words(sentences: Iterable[Words], settings: InputSettings) -> WordVocabulary:
    """Return the words that are learned with the task, by falling frequency."""
    fold = str.lower if settings.lowercase else str
    counts = Counter(fold(word) for words in sentences for word in words)
    return WordVocabulary.from_counts(list(counts), np.array(list(counts.values())), min_count=settings.min_count)


class EncodedSentences:
    """Sentences as arrays, to be padded in batches; each word is an index into the distinct words."""

    def __init__(self, features: "WordFeatures", sentences: Sequence[Words], on_message: MessageCallback):
        # ’ is replaced by ' in unknown words if the training examples have the result: don’t is then read as don't
        settings, bilm, known = features.settings, features.bilm, features.vocabulary.index
        fold = str.lower if settings.lowercase else str
        sentences = list(sentences)
        for i, words in enumerate(sentences):
            if "’" in "".join(words):
                pairs = [(word, word.replace("’", "'")) for word in words]
                sentences[i] = [new if fold(word) not in known and fold(new) in known else word for word, new in pairs]
        index: dict[str, int] = {}
        numbers = (index.setdefault(word, len(index)) for words in sentences for word in words)
        self.features = features
        self.lengths = np.array([len(words) for words in sentences], dtype=np.int64)  # (S,)
        self.starts = np.cumsum(self.lengths) - self.lengths  # (S,)
        self.numbers = np.fromiter(numbers, dtype=np.int32, count=int(self.lengths.sum()))  # (N,)
        distinct = list(index)
        # ids of the distinct words in the vocabulary, and their rows of the static vectors
        self.ids = features.vocabulary.ids(map(fold, distinct)) if features.has_learned_words else None
        self.rows = None if features.vectors is None else features.static_rows(distinct)
        has_spellings = features.max_filter_width > 0
        self.spellings = Spellings(distinct or [""], settings.max_characters) if has_spellings else None
        self.tokens = sentences if features.has_tuned_bilm else ()  # for a biLM that is fine-tuned
        self.elmo: ElmoVectors | None = None  # layers of a frozen biLM
        self.gpu_layers: Tensor | None = None  # (N, K, E): layers of all words in the memory of a GPU, if they fit
        if bilm is None or features.has_tuned_bilm:
            return
        folded = features.fold_for_bilm(sentences)
        if features.cache is None:
            self.elmo = ComputedVectors(bilm, folded, features.cut)
            return
        self.elmo = features.cache.vectors(folded, on_message)
        # cached layers that fit are copied to the biLM's GPU once, instead of batch by batch
        if bilm.device.type == "cuda":
            torch.cuda.empty_cache()  # memory of the embedding, which training does not need
            num_layers, size = features.elmo_shape
            num_bytes = len(self.numbers) * num_layers * size * 2
            if num_bytes and num_bytes <= torch.cuda.mem_get_info(bilm.device)[0] * MAX_GPU_SHARE:
                self.gpu_layers = load_layers(self.elmo, self.lengths, (num_layers, size), bilm.device)

    def batch(self, indices: np.ndarray) -> WordBatch:
        """Return the batch of the sentences with these indices."""
        lengths = self.lengths[indices]
        steps = max(int(lengths.max(initial=0)), 1)
        mask = np.arange(steps) < lengths[:, None]  # (B, T)
        numbers = np.zeros(mask.shape, dtype=np.int64)
        starts = self.starts[indices]
        numbers[mask] = np.concatenate([self.numbers[s : s + n] for s, n in zip(starts, lengths, strict=True)])
        parts: dict[str, Tensor] = {}
        for name, table in (("words", self.ids), ("rows", self.rows)):
            if table is not None:
                parts[name] = torch.from_numpy(table[numbers] * mask if len(table) else numbers)
        if self.spellings is not None:
            distinct, inverse = np.unique(numbers[mask], return_inverse=True)
            spelled = np.zeros_like(numbers)
            spelled[mask] = inverse
            margin = self.features.max_filter_width + MARGIN
            distinct = distinct if len(distinct) else np.zeros(1, dtype=np.int64)  # any word, for the padding
            parts["spellings"] = torch.from_numpy(self.spellings.ids(distinct, margin=margin))
            parts["spelled"] = torch.from_numpy(spelled)
        if self.gpu_layers is not None:
            positions = torch.from_numpy((self.starts[indices, None] + np.arange(steps)) * mask)
            device = self.gpu_layers.device
            layers = self.gpu_layers[positions.to(device)]
            parts["layers"] = layers * torch.from_numpy(mask).to(device)[..., None, None]
        elif self.elmo is not None:
            num_layers, size = self.features.elmo_shape  # all layers, or the top one
            padded = np.zeros((*mask.shape, num_layers, size), dtype=np.float16)
            for row, vectors in zip(padded, self.elmo.batch(indices.tolist()), strict=True):
                row[: len(vectors)] = vectors[:, -num_layers:]
            parts["layers"] = torch.from_numpy(padded)
        elif self.features.has_tuned_bilm:
            parts["elmo_ids"] = self.features.elmo_ids([self.tokens[i] for i in indices], steps)
        return WordBatch(torch.from_numpy(lengths), **parts)


def load_layers(elmo: ElmoVectors, lengths: np.ndarray, shape: tuple[int, int], device: torch.device) -> Tensor:
    """Copy the top K layers of all words of sentences with these lengths to a device; (N, K, E), `shape` is (K, E)."""
    num_words = int(lengths.sum())
    table = torch.empty(num_words, *shape, dtype=torch.float16, device=device)
    ends = np.cumsum(lengths)
    for indices in np.array_split(np.arange(len(lengths)), min(-(-num_words // COPY_BATCH_WORDS), len(lengths))):
        layers = np.concatenate([vectors[:, -shape[0] :] for vectors in elmo.batch(indices.tolist())])
        table[ends[indices[-1]] - len(layers) : ends[indices[-1]]] = torch.from_numpy(layers)
    return table


def measure_spread(bilm: BiLM, sentences: Sequence[Words]) -> LayerSpread:
    """Measure means and deviations of a biLM's layers on about SPREAD_SAMPLE_WORDS words, evenly sampled."""
    step = max(1, sum(map(len, sentences)) // SPREAD_SAMPLE_WORDS)
    layers, size = bilm.network.layer_count, bilm.network.size
    count, total, squares = 0, np.zeros((layers, size)), np.zeros((layers, size))
    for vectors in bilm.embed_stream([words for words in sentences[::step] if words]):  # (K, T, E)
        count += vectors.shape[1]
        total += vectors.sum(axis=1, dtype=np.float64)
        squares += np.square(vectors, dtype=np.float64).sum(axis=1)
    if not count:
        return LayerSpread(torch.zeros(layers, size), torch.ones(layers))
    means = total / count
    deviations = np.sqrt(np.maximum((squares / count - means**2).mean(axis=1), 1e-12))
    return LayerSpread(torch.tensor(means, dtype=torch.float32), torch.tensor(deviations, dtype=torch.float32))


class WordFeatures:
    """Features of words: a vocabulary and, optionally, static vectors, characters and a biLM."""

    def __init__(
        self,
        settings: InputSettings,
        vocabulary: WordVocabulary,
        *,
        vectors: WordVectors | None = None,
        bilm: BiLM | None = None,
        references: dict[str, Reference] | None = None,
    ):
        self.settings, self.vocabulary = settings, vocabulary
        self.vectors, self.bilm, self.references = vectors, bilm, references or {}
        self.cache: ElmoCache | None = None  # of a frozen biLM's layers; None computes them on demand
        self.spread: LayerSpread | None = None  # of its layers, for a new model; a saved one has it among its weights
        self.has_tuned_bilm = bilm is not None and settings.elmo_tune
        self.has_learned_words = bool(settings.word_dim) or settings.vectors_tune
        filters = parse_filters(settings.filters) if settings.char_dim else []
        self.max_filter_width = max((width for width, _ in filters), default=0)

    @classmethod
    def build(cls, settings: InputSettings, sentences: Iterable[Words], device: torch.device) -> "WordFeatures":
        """Build the features of a new model from its training sentences and the models that the settings name."""
        sentences = list(sentences)
        vectors = bilm = None
        references = {}
        if settings.vectors is not None:
            vectors = _load_vectors(settings.vectors)
            source = f"./{COPY_OF_VECTORS}" if settings.copy else absolute_source(settings.vectors)
            references["vectors"] = Reference(source, vectors_digest(vectors))
        if settings.elmo is not None:
            bilm = load(settings.elmo, kinds="bilm", device=device.type)
            source = f"./{COPY_OF_BILM}" if settings.copy else absolute_source(settings.elmo)
            references["elmo"] = Reference(source, bilm_digest(bilm))
        features = cls(settings, count_words(sentences, settings), vectors=vectors, bilm=bilm, references=references)
        if bilm is not None and settings.elmo_norm:
            features.spread = measure_spread(bilm, features.fold_for_bilm(sentences))
        return features

    @classmethod
    def restore(cls, saved: SavedFolder, settings: InputSettings, device: str) -> "WordFeatures":
        """Load the features of a saved model; the models it is built on must be those it was trained with."""
        vocabulary, folder = saved.vocabulary(WordVocabulary, what="words"), saved.path
        references: dict[str, Reference] = {}
        for name, source in {"vectors": settings.vectors, "elmo": settings.elmo}.items():
            reference = read_reference(folder, saved.config, name)
            if (reference is None) != (source is None):
                raise saved.config_error(f"its settings and its {name} disagree")
            if reference is not None:
                references[name] = reference
        required = references.keys() - ({"elmo"} if settings.elmo_tune else set())
        if unused := sorted(saved.moved.keys() - required):
            raise SettingError(f"--{unused[0]}: {folder} does not use such a model; omit it")
        vectors, bilm = None, None
        if "vectors" in references:
            vectors = references["vectors"].load(
                folder, "vectors", saved.moved.get("vectors"), reader=_load_vectors, checksum=vectors_digest
            )
        if "elmo" in references and settings.elmo_tune:
            # the weights of a biLM that was fine-tuned with the task are among those of the task
            bilm_settings, bilm_vocabulary = saved.settings("bilm", key="bilm"), None
            if bilm_settings.model.input == "word":
                bilm_vocabulary = SentenceVocabulary.load(verify_text_file(folder, saved.config, BILM_VOCABULARY))
            vocab_size = None if bilm_vocabulary is None else len(bilm_vocabulary)
            make_network = partial(BiLMNetwork, bilm_settings.model, vocab_size=vocab_size)
            check_weights_size(folder, saved.config, lambda: without_output(make_network()))
            with SkipInit():
                network = make_network()
            bilm = BiLM(network, bilm_settings, bilm_vocabulary, pick_device(device))
        elif "elmo" in references:
            load_bilm = partial(load, kinds="bilm", device=device)
            bilm = references["elmo"].load(
                folder, "elmo", saved.moved.get("elmo"), reader=load_bilm, checksum=bilm_digest
            )
        return cls(settings, vocabulary, vectors=vectors, bilm=bilm, references=references)

    def for_subfolder(self) -> "WordFeatures":
        """Return the features of a model in a subfolder, which shares the copies of this one."""
        references = {
            name: reference._replace(source=f".{reference.source}") if reference.source.startswith(".") else reference
            for name, reference in self.references.items()
        }
        settings = dataclasses.replace(self.settings, copy=False)
        features = WordFeatures(settings, self.vocabulary, vectors=self.vectors, bilm=self.bilm, references=references)
        features.spread = self.spread
        return features

    @property
    def elmo_shape(self) -> tuple[int, int]:
        """Number of layers that are mixed, and their size."""
        assert self.bilm is not None
        return (1 if self.settings.elmo_layers == "top" else self.bilm.network.layer_count), self.bilm.network.size

    @cached_property
    def cut(self) -> CutWords:
        """Count of the words that a frozen biLM has truncated."""
        assert self.bilm is not None
        return vars(self).setdefault("cut", self.bilm.embedder.cut_words())  # shared by all threads

    @cached_property
    def static(self) -> np.ndarray:
        """Static vectors after a row of zeros for words without one; (V + 1, D)."""
        assert self.vectors is not None
        return np.concatenate([np.zeros_like(self.vectors.matrix[:1]), self.vectors.matrix])

    def enable_cache(self) -> None:
        """Cache the layers of a frozen biLM on disk, unless the settings forbid it."""
        if self.bilm is not None and not self.has_tuned_bilm and self.settings.cache != NO_CACHE:
            self.cache = ElmoCache(cache_folder(self.settings.cache), self.bilm)

    def warn_low_coverage(self, sentences: Iterable[Words], on_message: MessageCallback) -> None:
        """Report if few of the words in these sentences, by occurrence, have a static vector."""
        settings = self.settings
        if self.vectors is None:
            return
        # only words with letters count: numbers and punctuation are the same in many languages
        counts = Counter(word for words in sentences for word in words if any(map(str.isalpha, word)))
        rows = self.static_rows(list(counts))
        num_covered = sum(count for count, row in zip(counts.values(), rows, strict=True) if row > 0)
        coverage = num_covered / max(counts.total(), 1)
        if coverage >= LOW_COVERAGE:
            return
        flags = ["--vectors none"]
        if settings.vectors_tune:
            flags.append("--no-vectors-tune")
        if not settings.word_dim and not settings.char_dim and (settings.elmo is None or settings.elmo_at == "output"):
            flags.append("--word-dim 100")
        english = ", which has vectors of English words" if settings.vectors == "words" else ""
        on_message(
            f"warning: only {coverage:.0%} of the training words have a vector in {settings.vectors}{english}. If your "
            f"text is in another language, give vectors of that language with --vectors, or use none: "
            f"{' '.join(flags)} (in Python, vectors=None)."
        )

    def encode(self, sentences: Sequence[Words], on_message: MessageCallback = lambda _: None) -> EncodedSentences:
        """Encode sentences as arrays; the cache of a frozen biLM's layers, if there is one, reports to `on_message`."""
        return EncodedSentences(self, sentences, on_message)

    def static_rows(self, words: Sequence[str]) -> np.ndarray:
        """Return rows of the static vectors, by the word or by its lower case; 0 if neither has a vector."""
        assert self.vectors is not None
        index, has_vector = self.vectors.vocabulary.index, self.vectors.has_vector
        rows = np.zeros(len(words), dtype=np.int64)
        for i, word in enumerate(words):
            for form in (word, word.lower()):
                row = index.get(form)
                if row is not None and has_vector[row]:
                    rows[i] = row + 1
                    break
        return rows

    def fold_for_bilm(self, sentences: Sequence[Words]) -> Sequence[Words]:
        """Return sentences in the case that the biLM reads."""
        assert self.bilm is not None
        if not self.bilm.settings.text.lowercase:
            return sentences
        return [[word.lower() for word in words] for words in sentences]

    def elmo_ids(self, sentences: Sequence[Words], steps: int) -> Tensor:
        """Return the input of a fine-tuned biLM: character ids (B, T, C), or word ids + 1 (B, T)."""
        assert self.bilm is not None
        sentences, model = self.fold_for_bilm(sentences), self.bilm.settings.model
        if model.input == "char":
            ids = sentence_ids(sentences, model.max_characters)
            return ids if ids.shape[1] else ids.new_zeros(len(ids), steps, ids.shape[2])
        assert self.bilm.vocabulary is not None
        ids = torch.zeros(len(sentences), steps, dtype=torch.int64)
        for row, words in zip(ids, sentences, strict=True):
            row[: len(words)] = torch.from_numpy(self.bilm.vocabulary.ids(words)) + 1
        return ids


def _load_vectors(source: str) -> WordVectors:
    """Load static vectors: bundled ones, a model folder, or a text file in the format of word2vec or GloVe."""
    return WordVectors.read_word2vec(source) if is_file(Path(source)) else load(source, kinds="skipgram")
