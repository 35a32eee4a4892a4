"""Sentences of words to the numbers that a task's network reads, and that network's inputs.

What a word is looked up in: the vocabulary of the training examples, static vectors, its characters, a biLM. The static
vectors and the biLM are models of their own (`store/references.py`); the vocabulary is kept with the task's model.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from relmo.disk.files import is_file
from relmo.embedding.elmo_cache import CachedVectors, Computed, ElmoCache, ElmoVectors, cache_folder
from relmo.embedding.engine import CutWords
from relmo.errors import SettingError
from relmo.loading import load
from relmo.models.bilm import BiLM
from relmo.models.saved import SavedFolder
from relmo.models.vectors import WordVectors
from relmo.networks.bilm import BiLMNetwork
from relmo.networks.elmo import Elmo, sentence_ids, without_output
from relmo.networks.inputs import ElmoParts, LayerSpread, WordBatch, WordInputs
from relmo.settings.bounds import parse_filters
from relmo.settings.task import NO_CACHE, InputSettings
from relmo.store.folder import BILM_VOCABULARY, COPY_OF_BILM, COPY_OF_VECTORS, VOCABULARY, known_text, pick_device
from relmo.store.references import (
    Reference,
    bilm_digest,
    full_source,
    read_reference,
    vectors_digest,
)
from relmo.store.weights import Unfilled, check_room
from relmo.text.characters import Spellings
from relmo.text.vocabulary import UNKNOWN, SentenceVocabulary, Vocabulary

SHARE_OF_GPU = 0.25  # of its free memory that layers of a biLM may take
WORDS_AT_ONCE = 1 << 16  # whose layers are copied to a GPU together
WORDS_OF_SPREAD = 10_000  # of the training examples, by which it is measured where a biLM's layers lie
LOW_COVERAGE = 0.7  # `words` covers 97% of English web text, 83% of English tweets, 58% of French, 44% of Danish
MARGIN = 1  # columns of padding beside the widest filter's that a batch's words keep

Words = Sequence[str]
Say = Callable[[str], object]


class WordVocabulary(Vocabulary):
    """Words of the training examples; the first stands for all others."""

    specials = (UNKNOWN,)


def count_words(sentences: Iterable[Words], settings: InputSettings) -> WordVocabulary:
    """The words that are learned with the task, the most frequent first."""
    fold = str.lower if settings.lowercase else str
    counts = Counter(fold(word) for words in sentences for word in words)
    return WordVocabulary.from_counts(list(counts), np.array(list(counts.values())), min_count=settings.min_count)


@dataclass
class EncodedSentences:
    """Sentences as numbers, to be laid out side by side: each word by its place among the distinct ones.

    ids, rows    of each distinct word, in the vocabulary and among the static vectors
    elmo         the layers of a frozen biLM
    on_gpu       the same of all words, one behind the other, in a GPU's memory, where they have room there (N, K, E)
    tokens       the words themselves, where a biLM that is trained reads them
    """

    features: "WordFeatures"
    lengths: np.ndarray  # (S,)
    starts: np.ndarray  # (S,)
    numbers: np.ndarray  # (N,)
    ids: np.ndarray | None
    rows: np.ndarray | None
    spellings: Spellings | None
    elmo: ElmoVectors | None
    on_gpu: Tensor | None
    tokens: Sequence[Words]

    def batch(self, which: np.ndarray) -> WordBatch:
        """The sentences of these numbers."""
        lengths = self.lengths[which]
        steps = max(int(lengths.max(initial=0)), 1)
        inside = np.arange(steps) < lengths[:, None]  # (B, T)
        numbers = np.zeros(inside.shape, dtype=np.int64)
        starts = self.starts[which]
        numbers[inside] = np.concatenate([self.numbers[s : s + n] for s, n in zip(starts, lengths, strict=True)])
        parts: dict[str, Tensor] = {}
        for name, table in (("words", self.ids), ("rows", self.rows)):
            if table is not None:
                parts[name] = torch.from_numpy(table[numbers] * inside if len(table) else numbers)
        if self.spellings is not None:
            distinct, where = np.unique(numbers[inside], return_inverse=True)
            spelled = np.zeros_like(numbers)
            spelled[inside] = where
            margin = self.features.widest + MARGIN
            distinct = distinct if len(distinct) else np.zeros(1, dtype=np.int64)  # some word, for places without one
            parts["spellings"] = torch.from_numpy(self.spellings.ids(distinct, margin=margin))
            parts["spelled"] = torch.from_numpy(spelled)
        if self.elmo is not None:
            parts["layers"] = self._layers(which, inside)
        elif self.features.tuned_bilm:
            ids = self.features.elmo_ids([self.tokens[i] for i in which])
            parts["elmo_ids"] = ids if ids.shape[1] else ids.new_zeros(*inside.shape, *ids.shape[2:])
        return WordBatch(torch.from_numpy(lengths), **parts)

    def _layers(self, which: np.ndarray, inside: np.ndarray) -> Tensor:
        """The biLM's layers, all or the top one; (B, T, K, E), zero past a sentence's end."""
        assert self.elmo is not None
        if self.on_gpu is not None:
            places = (self.starts[which, None] + np.arange(inside.shape[1])) * inside
            found, there = (torch.from_numpy(array).to(self.on_gpu.device) for array in (places, inside))
            return self.on_gpu[found] * there[..., None, None]
        kept, size = self.features.elmo_shape
        layers = np.zeros((*inside.shape, kept, size), dtype=np.float16)
        for row, vectors in zip(layers, self.elmo.batch(which.tolist()), strict=True):
            row[: len(vectors)] = vectors[:, -kept:]
        return torch.from_numpy(layers)


def laid_out(elmo: ElmoVectors, lengths: np.ndarray, shape: tuple[int, int], device: torch.device) -> Tensor:
    """The layers of all words of sentences of these lengths, of each word the top ones that `shape` (K, E) has room
    for; (N, K, E)."""
    words = int(lengths.sum())
    table = torch.empty(words, *shape, dtype=torch.float16, device=device)
    ends = np.cumsum(lengths)
    for some in np.array_split(np.arange(len(lengths)), min(-(-words // WORDS_AT_ONCE), len(lengths))):
        vectors = np.concatenate([each[:, -shape[0] :] for each in elmo.batch(some.tolist())])
        table[ends[some[-1]] - len(vectors) : ends[some[-1]]] = torch.from_numpy(vectors)
    return table


def layer_spread(bilm: BiLM, sentences: Sequence[Words]) -> LayerSpread:
    """Where a biLM's layers lie, by about WORDS_OF_SPREAD words of these sentences, taken at even distances."""
    step = max(1, sum(map(len, sentences)) // WORDS_OF_SPREAD)
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
    """What is known of words: the settings, a vocabulary, and, where there are such, static vectors and a biLM.

    cache      where a frozen biLM's layers are kept; None computes them when they are asked for
    spread     where its layers lie, for a new model that normalises them; one that was saved has it among its weights
    """

    def __init__(
        self,
        settings: InputSettings,
        vocabulary: WordVocabulary,
        *,
        vectors: WordVectors | None = None,
        bilm: BiLM | None = None,
        references: dict[str, Reference] | None = None,
    ):
        self.settings = settings
        self.vocabulary = vocabulary
        self.vectors = vectors
        self.bilm = bilm
        self.references = references or {}
        self.cache: ElmoCache | None = None
        self.spread: LayerSpread | None = None
        self.widest = max((width for width, _ in self.filters), default=0)

    @classmethod
    def begin(cls, settings: InputSettings, sentences: Iterable[Words], device: torch.device) -> "WordFeatures":
        """For a new model: the vocabulary from the training examples, the other models from where the settings say."""
        sentences = list(sentences)
        vectors = None if settings.vectors is None else _open_vectors(settings.vectors)
        bilm = None if settings.elmo is None else load(settings.elmo, kinds="bilm", device=device.type)
        references = {}
        if vectors is not None and settings.vectors is not None:
            references["vectors"] = Reference(full_source(settings.vectors), vectors_digest(vectors))
        if bilm is not None and settings.elmo is not None:
            references["elmo"] = Reference(full_source(settings.elmo), bilm_digest(bilm))
        if settings.copy:
            places = {"vectors": f"./{COPY_OF_VECTORS}", "elmo": f"./{COPY_OF_BILM}"}
            references = {name: reference._replace(source=places[name]) for name, reference in references.items()}
        made = cls(settings, count_words(sentences, settings), vectors=vectors, bilm=bilm, references=references)
        if bilm is not None and settings.elmo_norm:
            made.spread = layer_spread(bilm, made._folded(sentences))
        return made

    @classmethod
    def restore(cls, saved: SavedFolder, settings: InputSettings, device: str) -> "WordFeatures":
        """Those of a model that was saved; the models it is built on must be those it was trained with."""
        vocabulary, folder = saved.vocabulary(WordVocabulary, what="words"), saved.path
        wanted = {"vectors": settings.vectors, "elmo": settings.elmo}
        references: dict[str, Reference] = {}
        for name, source in wanted.items():
            reference = read_reference(folder, saved.config, name)
            if (reference is None) != (source is None):
                raise saved.damaged(f"its settings and its {name} disagree")
            if reference is not None:
                references[name] = reference
        needed = references.keys() - ({"elmo"} if settings.elmo_tune else set())
        if unused := sorted(saved.moved.keys() - needed):
            raise SettingError(f"--{unused[0]}: {folder} needs no such model; leave it out")
        vectors, bilm = None, None
        if "vectors" in references:
            vectors = references["vectors"].opened(
                folder, "vectors", saved.moved.get("vectors"), reader=_open_vectors, checksum=vectors_digest
            )
        if "elmo" in references and settings.elmo_tune:
            bilm = _read_tuned(saved, device)
        elif "elmo" in references:

            def read_bilm(place: str) -> BiLM:
                return load(place, kinds="bilm", device=device)

            bilm = references["elmo"].opened(
                folder, "elmo", saved.moved.get("elmo"), reader=read_bilm, checksum=bilm_digest
            )
        return cls(settings, vocabulary, vectors=vectors, bilm=bilm, references=references)

    def vocabulary_files(self) -> dict[str, Vocabulary]:
        """The vocabularies of a model's folder: the words, and those of a biLM that is trained and reads numbers."""
        found: dict[str, Vocabulary] = {VOCABULARY: self.vocabulary}
        if self.bilm is not None and self.tuned_bilm and self.bilm.settings.model.input == "word":
            assert self.bilm.vocabulary is not None
            found[BILM_VOCABULARY] = self.bilm.vocabulary
        return found

    def save_copies(self, folder: Path) -> None:
        """Copies of the other models where the settings ask for them, but not over those that are there."""
        if not self.settings.copy:
            return
        if self.vectors is not None and not (folder / COPY_OF_VECTORS / "config.json").exists():
            self.vectors.save_pretrained(folder / COPY_OF_VECTORS)
        if self.bilm is not None and not self.tuned_bilm and not (folder / COPY_OF_BILM / "config.json").exists():
            self.bilm.save_pretrained(folder / COPY_OF_BILM)

    def config(self) -> dict[str, Any]:
        """What `restore` needs to know."""
        values: dict[str, Any] = {"vocab_size": len(self.vocabulary)}
        values |= {name: reference._asdict() for name, reference in self.references.items()}
        if self.tuned_bilm and self.bilm is not None:
            values["bilm"] = dataclasses.asdict(self.bilm.settings)
        return values

    def inside(self) -> "WordFeatures":
        """The same for a model in a folder inside this one's, which shares its copies."""
        references = {
            name: reference._replace(source=f".{reference.source}") if reference.source.startswith(".") else reference
            for name, reference in self.references.items()
        }
        settings = dataclasses.replace(self.settings, copy=False)
        made = WordFeatures(settings, self.vocabulary, vectors=self.vectors, bilm=self.bilm, references=references)
        made.spread = self.spread
        return made

    @property
    def filters(self) -> list[tuple[int, int]]:
        """Those of the character CNN."""
        return parse_filters(self.settings.filters) if self.settings.char_dim else []

    @property
    def tuned_bilm(self) -> bool:
        """Whether there is a biLM that is trained with the task."""
        return self.bilm is not None and self.settings.elmo_tune

    @property
    def elmo_shape(self) -> tuple[int, int]:
        """How many layers are mixed, and their size."""
        assert self.bilm is not None
        return (1 if self.settings.elmo_layers == "top" else self.bilm.network.layer_count), self.bilm.network.size

    @cached_property
    def cut(self) -> CutWords:
        """How many words a frozen biLM has read that had more bytes than it has room for."""
        assert self.bilm is not None
        return vars(self).setdefault("cut", self.bilm.embedder.cut_words())  # the same one for all threads

    @cached_property
    def static(self) -> np.ndarray:
        """The static vectors behind a row of zeros, which is of words that have none; (V + 1, D)."""
        assert self.vectors is not None
        return np.concatenate([np.zeros_like(self.vectors.matrix[:1]), self.vectors.matrix])

    def make_inputs(self) -> WordInputs:
        """The inputs of a network, at their beginning; without the numbers of the static vectors (`finish`)."""
        settings = self.settings
        elmo = bilm = None
        if self.bilm is not None:
            at = settings.elmo_at
            kept, size = self.elmo_shape
            elmo = ElmoParts(
                layers=kept,
                size=size,
                at_input=at != "output",
                at_output=at != "input",
                dropout=settings.elmo_dropout,
                norm=settings.elmo_norm,
                l2=settings.elmo_l2,
            )
            if settings.elmo_tune:
                bilm = Elmo(self.bilm, mixes=0, trainable=True)
        learned = bool(settings.word_dim) or settings.vectors_tune
        inputs = WordInputs(
            words=len(self.vocabulary) if learned else 0,
            word_dim=settings.word_dim,
            static=(0, 0) if self.vectors is None else (len(self.vectors) + 1, self.vectors.matrix.shape[1]),
            tuned=settings.vectors_tune,
            filters=self.filters,
            char_dim=settings.char_dim,
            max_characters=settings.max_characters,
            word_dropout=settings.word_dropout,
            elmo=elmo,
            bilm=bilm,
        )
        if self.spread is not None:
            inputs.put_spread(self.spread)
        return inputs

    def finish(self, inputs: WordInputs) -> None:
        """Gives inputs that were made or loaded the static vectors, which are no weights of theirs."""
        if self.vectors is not None:
            inputs.put_static(torch.from_numpy(self.static))

    def keep_layers(self, *, dry_run: bool = False) -> None:
        """From now on a frozen biLM's layers are kept on disk, unless the settings say otherwise."""
        if self.bilm is not None and not self.tuned_bilm and self.settings.cache != NO_CACHE and not dry_run:
            self.cache = ElmoCache(cache_folder(self.settings.cache), self.bilm)

    def vector_coverage(self, sentences: Iterable[Words]) -> float:
        """Return the share of words, by occurrence, that have a static vector. Only words with letters count: numbers
        and punctuation are the same in many languages."""
        counts = Counter(word for words in sentences for word in words)
        distinct = [word for word in counts if any(map(str.isalpha, word))]
        has_vector = self._rows(distinct) > 0
        covered = sum(counts[word] for word, has_one in zip(distinct, has_vector, strict=True) if has_one)
        return covered / max(sum(counts[word] for word in distinct), 1)

    def warn_low_coverage(self, sentences: Iterable[Words], say: Say) -> None:
        """Tell `say` if most static vectors are of no use for these sentences, and how to train without them."""
        settings = self.settings
        if self.vectors is None or (coverage := self.vector_coverage(sentences)) >= LOW_COVERAGE:
            return
        flags = ["--vectors none"]
        if settings.vectors_tune:
            flags.append("--no-vectors-tune")
        if not settings.word_dim and not settings.char_dim and (settings.elmo is None or settings.elmo_at == "output"):
            flags.append("--word-dim 100")
        english = ", which has vectors of English words" if settings.vectors == "words" else ""
        say(
            f"warning: only {coverage:.0%} of the training words have a vector in {settings.vectors}{english}. If your "
            f"text is in another language, give vectors of that language with --vectors, or use none: "
            f"{' '.join(flags)} (in Python, vectors=None)."
        )

    def encode(self, sentences: Sequence[Words], say: Say = lambda _: None) -> EncodedSentences:
        """Sentences as numbers; a frozen biLM's layers from the cache where there is one, which `say` is told of."""
        sentences = self._written(sentences)
        lengths = np.array([len(words) for words in sentences], dtype=np.int64)
        index: dict[str, int] = {}
        numbers = np.fromiter(
            (index.setdefault(word, len(index)) for words in sentences for word in words),
            dtype=np.int32,
            count=int(lengths.sum()),
        )
        distinct = list(index)
        elmo = self._elmo(sentences, say)
        learned = self.settings.word_dim or self.settings.vectors_tune
        return EncodedSentences(
            features=self,
            lengths=lengths,
            starts=np.cumsum(lengths) - lengths,
            numbers=numbers,
            ids=self._ids(distinct) if learned else None,
            rows=None if self.vectors is None else self._rows(distinct),
            spellings=Spellings(distinct or [""], self.settings.max_characters) if self.filters else None,
            elmo=elmo,
            on_gpu=self._on_gpu(elmo, lengths),
            tokens=sentences if self.tuned_bilm else (),
        )

    def _written(self, sentences: Sequence[Words]) -> Sequence[Words]:
        """Words as the training examples write them: where these have don't and no don’t, don’t is read as don't."""
        fold = str.lower if self.settings.lowercase else str

        def straight(word: str) -> str:
            other = word.replace("’", "'")
            known = self.vocabulary.index
            return other if other != word and fold(word) not in known and fold(other) in known else word

        return [list(map(straight, words)) if "’" in "".join(words) else words for words in sentences]

    def _ids(self, words: Sequence[str]) -> np.ndarray:
        return self.vocabulary.ids([word.lower() for word in words] if self.settings.lowercase else words)

    def _rows(self, words: Sequence[str]) -> np.ndarray:
        """Rows of the static vectors: a word's own, or of the word in lower case; 0 where neither is there."""
        assert self.vectors is not None
        index, there = self.vectors.vocabulary.index, self.vectors.has_vector
        rows = np.zeros(len(words), dtype=np.int64)
        for i, word in enumerate(words):
            for form in (word, word.lower()):
                found = index.get(form)
                if found is not None and there[found]:
                    rows[i] = found + 1
                    break
        return rows

    def _elmo(self, sentences: Sequence[Words], say: Say) -> ElmoVectors | None:
        if self.bilm is None or self.tuned_bilm:
            return None
        folded = self._folded(sentences)
        if self.cache is None:
            return Computed(self.bilm, folded, self.cut)
        kept = self.cache.vectors(folded, say)
        if self.bilm.device.type == "cuda":
            torch.cuda.empty_cache()  # what embedding took, and training does not need
        return kept

    def _on_gpu(self, elmo: ElmoVectors | None, lengths: np.ndarray) -> Tensor | None:
        """The kept layers of all words, (N, K, E), copied to the biLM's GPU once, so that no batch has to be. None
        where there is no GPU, or where they would fill more than a quarter of what is free there."""
        if not isinstance(elmo, CachedVectors) or self.bilm is None or self.bilm.device.type != "cuda":
            return None
        kept, size = self.elmo_shape
        words = int(lengths.sum())
        if not words or words * kept * size * 2 > torch.cuda.mem_get_info(self.bilm.device)[0] * SHARE_OF_GPU:
            return None
        return laid_out(elmo, lengths, (kept, size), self.bilm.device)

    def _folded(self, sentences: Sequence[Words]) -> Sequence[Words]:
        """Words as the biLM reads them."""
        assert self.bilm is not None
        if not self.bilm.settings.text.lowercase:
            return sentences
        return [[word.lower() for word in words] for words in sentences]

    def elmo_ids(self, sentences: Sequence[Words]) -> Tensor:
        """What a biLM that is trained reads: character ids (B, T, C), or ids of words + 1 (B, T)."""
        assert self.bilm is not None
        sentences = self._folded(sentences)
        if self.bilm.settings.model.input == "char":
            return sentence_ids(sentences, self.bilm.settings.model.max_characters)
        assert self.bilm.vocabulary is not None
        ids = torch.zeros(len(sentences), max(map(len, sentences)), dtype=torch.int64)
        for row, words in zip(ids, sentences, strict=True):
            row[: len(words)] = torch.from_numpy(self.bilm.vocabulary.ids(words)) + 1
        return ids


def _open_vectors(source: str) -> WordVectors:
    """Static word vectors: those that ship, a folder, or a text file in word2vec's or GloVe's format."""
    return WordVectors.read_word2vec(source) if is_file(Path(source)) else load(source, kinds="skipgram")


def _read_tuned(saved: SavedFolder, device: str) -> BiLM:
    """A biLM that was trained with the task, whose weights are among the task's: here it has none yet."""
    settings = saved.settings("bilm", key="bilm")
    vocabulary = None
    if settings.model.input == "word":
        vocabulary = SentenceVocabulary.load(known_text(saved.path, saved.config, BILM_VOCABULARY))

    def make() -> BiLMNetwork:
        return BiLMNetwork(settings.model, vocab_size=None if vocabulary is None else len(vocabulary))

    check_room(saved.path, saved.config, lambda: without_output(make()))
    with Unfilled():
        network = make()
    return BiLM(network, settings, vocabulary, pick_device(device))
