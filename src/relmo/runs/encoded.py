"""The encoded corpus of a run, in the run's folder: encoded once, then read from there.

run/encoded.json   facts on the corpus and the digests of its files; the corpus is complete once this exists
run/train.ids …    ids, and vocab.txt: of language models and word vectors
run/train.words …  indices of words, and lexicon.txt: of bidirectional language models
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from relmo.config import build
from relmo.disk.digests import check_file, fingerprint, read_sealed, seal
from relmo.disk.outputs import atomic
from relmo.errors import ModelError, StorageError
from relmo.runs.folder import ENCODED, RESTORE_RUN, SCRATCH
from relmo.settings.bilm import BiLMSettings
from relmo.settings.lm import TextSettings
from relmo.store.folder import VOCABULARY, write_json
from relmo.text.encode import Corpus, Stream, check_numbers, encode_corpus, open_stream
from relmo.text.sentences import SentenceCorpus, Sentences, check_sentences, encode_sentence_corpus, open_sentences
from relmo.text.vocabulary import SentenceVocabulary, Vocabulary
from relmo.training.parallel import SINGLE_PROCESS, Team

if TYPE_CHECKING:
    from relmo.models.bilm import BiLM

LEXICON = "lexicon.txt"
Encoded = TypeVar("Encoded")


class BiLMCorpus(NamedTuple):
    """Corpus of a bidirectional model; the settings of the run, completed from the initial model; and whether the
    output layer is new, for another vocabulary than the initial model's."""

    corpus: SentenceCorpus
    settings: BiLMSettings
    has_new_softmax: bool


def load_corpus(files: Sequence[str], text: TextSettings, out: Path, team: Team = SINGLE_PROCESS) -> Corpus:
    """Return the corpus of a language model, or of word vectors."""
    return _encode_once(out, team, write=lambda: _write_corpus(files, text, out), read=_read_corpus)


def load_sentences(
    files: Sequence[str], settings: BiLMSettings, start: "BiLM | None", out: Path, team: Team
) -> BiLMCorpus:
    """Return the corpus of a bidirectional model, which may start from another model."""
    return _encode_once(out, team, write=lambda: _write_sentences(files, settings, start, out), read=_read_sentences)


def has_new_vocabulary(settings: BiLMSettings) -> bool:
    """Return whether the settings define a vocabulary."""
    text = settings.text
    return text.vocabulary is not None or text.vocabulary_size is not None or text.min_count != 1


def _encode_once(out: Path, team: Team, *, write: Callable[[], None], read: Callable[[Path], Encoded]) -> Encoded:
    """Let the leader write the corpus, unless it is there, and all processes read it."""
    path = out / ENCODED
    with team.barrier():
        if team.is_leader and not path.exists():
            write()
        elif team.is_leader:
            with _check_note(path):
                for name, expected in read_sealed(path, RESTORE_RUN)["files"].items():
                    check_file(out / SCRATCH / name, expected, RESTORE_RUN)
    with team.barrier():
        if not path.exists():
            raise StorageError(
                f"--out {out}: process {team.rank} does not see the files of process 0; give a folder that all "
                "machines of the run share"
            )
        return read(out)


def _write_note(out: Path, values: dict[str, Any], files: Sequence[str]) -> None:
    write_json(out / ENCODED, seal(values | {"files": {name: fingerprint(out / SCRATCH / name) for name in files}}))


@contextmanager
def _check_note(path: Path) -> Iterator[None]:
    """Report missing or invalid entries of a note; its checksum is correct, so it was forged."""
    try:
        yield
    except (AttributeError, KeyError, OSError, OverflowError, TypeError, ValueError) as error:
        raise ModelError(f"{path}: is not the note of a run, although its checksum matches; {RESTORE_RUN}") from error


def _write_corpus(files: Sequence[str], text: TextSettings, out: Path) -> None:
    corpus = encode_corpus(files, text, out / SCRATCH)
    with atomic(out / SCRATCH / VOCABULARY) as temporary:
        corpus.vocabulary.save(temporary)
    parts = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}
    figures = {name: (part.characters, part.unknown) for name, part in parts.items() if part}
    _write_note(out, {"parts": figures}, [VOCABULARY, *(f"{name}.ids" for name in figures)])


def _read_corpus(out: Path) -> Corpus:
    note = read_sealed(out / ENCODED, RESTORE_RUN)
    vocabulary = Vocabulary.load(out / SCRATCH / VOCABULARY)
    streams: dict[str, Stream] = {}
    with _check_note(out / ENCODED):
        for name, (characters, unknown) in note["parts"].items():
            path = out / SCRATCH / f"{name}.ids"
            streams[name] = Stream(open_stream(path, len(vocabulary)), int(characters), int(unknown))
            check_numbers(path, streams[name].ids, 0, len(vocabulary) - 1)
        return Corpus(vocabulary, streams["train"], streams.get("valid"), streams.get("test"))


def _write_sentences(files: Sequence[str], settings: BiLMSettings, start: "BiLM | None", out: Path) -> None:
    scratch = out / SCRATCH
    initial = None if start is None else start.vocabulary
    corpus = encode_sentence_corpus(files, settings.text, scratch, None if has_new_vocabulary(settings) else initial)
    has_new_softmax = start is not None and (initial is None or initial.symbols != corpus.vocabulary.symbols)
    with atomic(scratch / LEXICON) as temporary:
        SentenceVocabulary(corpus.lexicon).save(temporary)
    unknown = {name: part.unknown for name, part in (("train", corpus.train), ("valid", corpus.valid)) if part}
    values = {
        "vocab_size": len(corpus.vocabulary),
        "unknown": unknown,
        "settings": dataclasses.asdict(settings),
        "fresh": has_new_softmax,
    }
    _write_note(out, values, [LEXICON, *(f"{name}.words" for name in unknown)])


def _read_sentences(out: Path) -> BiLMCorpus:
    scratch = out / SCRATCH
    note = read_sealed(out / ENCODED, RESTORE_RUN)
    lexicon = SentenceVocabulary.load(scratch / LEXICON).symbols
    parts: dict[str, Sentences] = {}
    with _check_note(out / ENCODED):
        for name, unknown in note["unknown"].items():
            path = scratch / f"{name}.words"
            parts[name] = Sentences(open_sentences(path), int(unknown))
            check_sentences(path, parts[name].words, len(lexicon))
        vocabulary = SentenceVocabulary(lexicon[: note["vocab_size"]])
        if not vocabulary.index.keys() >= {*vocabulary.specials}:
            raise ValueError("its vocab_size excludes the sentence boundaries")
        corpus = SentenceCorpus(lexicon, vocabulary, parts["train"], parts.get("valid"))
        settings = build(BiLMSettings, note["settings"], source=str(out / ENCODED))
        settings.model.check()
        return BiLMCorpus(corpus, settings, bool(note["fresh"]))
