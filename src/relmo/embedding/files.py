"""The vectors of a file's sentences, in a file: .h5, .parquet, .npz or .safetensors.

Work is never lost. While it goes on, everything is appended to a folder beside the target, OUT.partial:

    note.json       what is computed: the model's digest, layers, state, dtype …; a resumed run must ask for the same
    vectors.bin     the numbers of all sentences, one after another
    lines.jsonl     one line a sentence, its text and tokens, and a checksum of them and of its vectors; written when
                    these are on disk

A half-written tail is dropped on resuming; any other damage is an error. What is kept is compared with the input as it
is read again. When all is there, the target is written from it under a temporary name in that folder, renamed, and the
folder removed.

Sentences are numbered from 0 by the lines of the input (a blank line is a sentence without tokens); of CoNLL-U, by its
sentences.

    .h5             "0", "1", …: (layers, tokens, dim), or (tokens, dim) of one layer; `sentence_to_index`, as the old
                    `allennlp elmo` wrote it: one JSON object from a line's text to its number, the last of equal ones.
                    Attributes of each dataset, which the old tools did not have and do not see: `tokens`, and `offsets`
                    (tokens, 2), where each begins and ends in the line's text, without white space at its ends
    .npz            arrays "0", "1", … of the same shapes
    .safetensors    likewise
    .parquet        a row a token: line, position, token, start, end, vector. With all layers a vector is those of all
                    layers, one after another: vector.reshape(layers, dim); the schema's metadata says how many

With pooling, one vector a sentence: an array `vectors` (sentences, dim) or (sentences, layers, dim), in .parquet a row
a sentence: line, text, vector.

Where the sentences come from a table that has names for its rows, these are kept: in .parquet a column `id`; in .h5 an
attribute `id` of each dataset or, pooled, a dataset `ids`; in .npz an array `ids`; in .safetensors `ids` in its
metadata, as JSON.
"""

import json
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple
from zlib import crc32

import numpy as np

from relmo.disk.digests import check_regular, read_json
from relmo.disk.outputs import behind_links, is_special, locked, refuse_existing, settle, storage_errors
from relmo.disk.parquet import import_pyarrow
from relmo.embedding.engine import CutWords, pool
from relmo.embedding.formats import WRITERS
from relmo.errors import CorpusError, SettingError, StorageError
from relmo.settings.embedding import EmbedOptions
from relmo.store.folder import digest, own_tensors, write_json
from relmo.text.corpus import STDIN, Errors
from relmo.text.sources import SourceText, Split, TableColumns, read_texts

if TYPE_CHECKING:
    from relmo.models.bilm import BiLM


Pooling = Literal["mean", "max"]
Tokenizer = Literal["words", "whitespace"]
Watch = Callable[["EmbedProgress"], object]

COMMIT_SECONDS, COMMIT_BYTES = 2.0, 256 << 20  # a crash loses so much, and the window of sentences under way
LONGEST = 1 << 26  # bytes of a line of lines.jsonl
CHECKED = 1 << 20  # bytes of vectors that are looked at together


class Sentence(NamedTuple):
    """A line of the input, and the tokens it was split into; of a table, the name of its row."""

    text: str
    tokens: list[str]
    name: str | None = None


@dataclass
class EmbedProgress:
    """How far it is: sentences and tokens, those of this run, how many sentences there are where that is known."""

    done: int
    total: int | None
    tokens: int = 0
    resumed: int = 0


class Summary(NamedTuple):
    """What was done in this run; `resumed` sentences were there already."""

    out: Path
    sentences: int
    resumed: int
    tokens: int
    seconds: float
    cut: CutWords


class Layout(NamedTuple):
    """How the numbers of a sentence are laid out."""

    layers: int | None
    dim: int
    dtype: str
    pooled: bool

    def shape(self, tokens: int) -> tuple[int, ...]:
        """Of a sentence's array."""
        return (*([] if self.layers is None else [self.layers]), *([] if self.pooled else [tokens]), self.dim)

    def size(self, tokens: int) -> int:
        """Of a sentence's array, in bytes."""
        return int(np.prod(self.shape(tokens))) * np.dtype(self.dtype).itemsize


def _check_out(out: Path, *, resume: bool, overwrite: bool) -> None:
    """The name says a format that can be written here, and nothing is lost there; a run that goes on has asked
    before."""
    if out.suffix.lower() not in WRITERS:
        raise SettingError(f"{out}: the format is told by the name, which must end in {', '.join(WRITERS)}")
    if resume and overwrite:
        raise SettingError("--resume goes on with a run, --overwrite begins it anew; give one of them")
    refuse_existing(out, overwrite=overwrite or (resume and _partial_folder(out).exists()))
    if out.suffix.lower() == ".parquet":
        import_pyarrow()


def embed_file(
    model: "BiLM",
    source: str | Path | None,
    out: str | Path,
    options: EmbedOptions | None = None,
    *,
    pooling: Pooling | None = None,
    dtype: Literal["float32", "float16"] = "float32",
    columns: TableColumns = TableColumns(),  # noqa: B008
    split: Split = "lines",
    errors: Errors = "strict",
    resume: bool = False,
    overwrite: bool = False,
    watch: Watch | None = None,
) -> Summary:
    """Embeds the sentences of a text, a CoNLL-U file or a table (standard input where it is None) into the file `out`.

    With `resume`, a run that was broken off goes on after its last whole sentence, and the result is the same. Carried
    states are not kept, so with those a run is done at once or not at all.
    """
    source, out, options = STDIN if source is None else source, Path(out), options or EmbedOptions()
    _check_out(out, resume=resume, overwrite=overwrite)
    if dtype not in ("float32", "float16"):
        raise SettingError(f"dtype is {dtype!r}; it can be 'float32' or 'float16'")
    if resume and options.state != "reset":
        raise SettingError(
            f"a run with state '{options.state}' cannot be resumed: its states are not kept; start again"
        )
    options.check(model.network.layer_count)
    layout = layout_of(model, options, pooling, dtype)
    partial = PartialFolder(out, layout, note(model, options, pooling, layout), keep=options.state == "reset")
    reading: dict[str, Any] = {"columns": columns, "split": split, "errors": errors}
    total = sum(1 for _ in read_texts(source, **reading)) if Path(source).is_file() else None  # errors are found here
    filling = Filling(partial, options, pooling, total, watch)
    return filling.run(model, read_texts(source, **reading), source, resume=resume, overwrite=overwrite)


class Filling(NamedTuple):
    """How a folder OUT.partial is filled and becomes OUT."""

    partial: "PartialFolder"
    options: EmbedOptions
    pooling: Pooling | None = None
    total: int | None = None
    watch: Watch | None = None

    def run(
        self,
        model: "BiLM",
        texts: Iterator[SourceText],
        source: str | Path,
        *,
        resume: bool,
        overwrite: bool = False,
        forget: bool = True,
    ) -> Summary:
        """Embeds texts that come from `source`. With `forget` the words that the model keeps in memory go before the
        file is written."""
        partial, started, cut = self.partial, time.monotonic(), model.embedder.cut_words()
        rest = partial.skip_done((_split_text(text, model) for text in texts), source)
        embedded = _embed_each(model, rest, self.options, cut)
        with _only_here(partial.folder):
            with partial.open(resume=resume, overwrite=overwrite):
                progress = EmbedProgress(partial.count, self.total, resumed=partial.count)
                for sentence, vectors in embedded:
                    partial.append(sentence, vectors if self.pooling is None else pool(vectors, self.pooling))
                    progress.done += 1
                    progress.tokens += len(sentence.tokens)
                    if self.watch is not None:
                        self.watch(progress)
                partial.commit()
                if not partial.count:
                    raise CorpusError(f"{source}: there is nothing in it; give a file with a sentence a line")
            if forget:
                model.embedder.forget_words()
            partial.finish()
        return Summary(partial.out, progress.done, progress.resumed, progress.tokens, time.monotonic() - started, cut)


def layout_of(model: "BiLM", options: EmbedOptions, pooling: Pooling | None, dtype: str) -> Layout:
    """How the numbers that a model gives are laid out."""
    layers = model.network.layer_count if options.layers == "all" else None
    return Layout(layers, model.network.size, dtype, bool(pooling))


@contextmanager
def _only_here(folder: Path) -> Iterator[None]:
    """A folder in which no other process works meanwhile; if nothing stays in it, it goes."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        try:
            yield
        finally:
            with suppress(OSError):
                folder.rmdir()


def note(model: "BiLM", options: EmbedOptions, pooling: Pooling | None, layout: Layout) -> dict[str, Any]:
    """All that the result depends on, beside the input."""
    text = model.settings.text
    values = {
        "model": digest({name: tensor.cpu() for name, tensor in own_tensors(model.network).items()}),
        "tokenizer": text.tokenizer,
        "lowercase": text.lowercase,
        "layers": options.layers,
        "pooling": pooling,
        "state": options.state,
        "dtype": layout.dtype,
        "precision": model.precision,
    }
    return values | ({"batch_size": options.batch_size} if options.state != "reset" else {})


def read_source(source: str | Path, model: "BiLM") -> Iterator[Sentence]:
    """The sentences of a file, blank lines too."""
    return (_split_text(text, model) for text in read_texts(source))


def _split_text(source: SourceText, model: "BiLM") -> Sentence:
    """A text with its tokens; words that are given are kept."""
    if source.words is None:
        return Sentence(source.text.strip(), model.tokens(source.text), source.name)
    lowercase = model.settings.text.lowercase
    return Sentence(source.text, [word.lower() if lowercase else word for word in source.words], source.name)


def _embed_each(
    model: "BiLM", sentences: Iterator[Sentence], options: EmbedOptions, cut: CutWords
) -> Iterator[tuple[Sentence, np.ndarray]]:
    """Sentences with their vectors; the model reads ahead, so sentences wait in a queue. Options that make no sense are
    an error at once, before anything is read or written."""
    waiting: deque[Sentence] = deque()

    def feed() -> Iterator[list[str]]:
        for sentence in sentences:
            waiting.append(sentence)
            yield sentence.tokens

    vectors = model.embedder.stream(feed(), options, cut)
    return ((waiting.popleft(), array) for array in vectors)


def _partial_folder(out: Path) -> Path:
    """Beside the output, or beside the file that a link points to."""
    with storage_errors(out):
        real = out if is_special(out) else behind_links(out)
    return real.with_name(real.name + ".partial")


class PartialFolder:
    """The folder OUT.partial: what is done so far."""

    def __init__(self, out: Path, layout: Layout, note: dict[str, Any], *, keep: bool, first: int = 0):
        self.out, self.layout, self.note = out, layout, note
        self.first = first
        """The number of the first sentence: where it is not 0, this is a part of a larger text, in .parquet."""
        self.keep = keep
        """Whether a run that is broken off can be resumed; otherwise the folder goes."""
        self.folder = _partial_folder(out)
        self.vectors, self.lines = self.folder / "vectors.bin", self.folder / "lines.jsonl"
        self.count = 0
        """Sentences done."""

    def open(self, *, resume: bool, overwrite: bool = False) -> "PartialFolder":
        """Begins, or goes on."""
        with storage_errors(self.folder):
            exists = (self.folder / "note.json").exists()
            if exists and not (resume or overwrite):
                go_on = "--resume to go on with it, or " if self.keep else ""
                raise StorageError(
                    f"{self.folder}: an earlier run was broken off here; add {go_on}--overwrite to start again"
                )
            if exists and resume:
                self._check_note()
                self._drop_tail()
            else:
                for path in (self.vectors, self.lines):
                    path.write_bytes(b"")
                write_json(self.folder / "note.json", self.note)
            self._files: list[BinaryIO] = [path.open("ab", buffering=0) for path in (self.vectors, self.lines)]
        self._pending: list[bytes] = []
        self._held, self._last = 0, time.monotonic()
        return self

    def _check_note(self) -> None:
        again = f"remove {self.folder} to start again"
        found = read_json(self.folder / "note.json", again, StorageError)
        for name in self.note | found:
            mine, theirs = self.note.get(name), found.get(name)
            if mine != theirs:
                what = "another model" if name == "model" else f"{name:.40} {theirs!r:.40}, not {mine!r:.40}"
                raise StorageError(
                    f"{self.folder}: was begun with {what}; resume it as it was begun, or remove it to start again"
                )
        for path in (self.vectors, self.lines):
            check_regular(path, again, StorageError)

    def _drop_tail(self) -> None:
        """Keeps whole sentences: a line with its end, whose vectors are all there. Lines at the end that are none were
        cut short by a kill; elsewhere, and where a checksum is wrong, something was damaged."""
        here, lines, vectors, broken = self.vectors.stat().st_size, 0, 0, 0
        with self.lines.open("rb") as file, self.vectors.open("rb") as numbers:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST), b""), start=1):
                entry = _parse_line(line)
                if entry is None:
                    broken = broken or number
                    continue
                sentence, checksum = entry
                size = self.layout.size(len(sentence.tokens))
                if vectors + size > here:
                    break
                if broken or checksum != _checksum_of(numbers, size, _line_of(sentence)):
                    raise StorageError(
                        f"{self.lines}:{broken or number}: the sentence or its vectors are damaged (the checksum does "
                        f"not match); remove {self.folder} to start again"
                    )
                lines, vectors = lines + len(line), vectors + size
                self.count += 1
        os.truncate(self.lines, lines)
        os.truncate(self.vectors, vectors)
        for begun in ("result", "index.json"):
            (self.folder / begun).unlink(missing_ok=True)

    def skip_done(self, sentences: Iterator[Sentence], source: str | Path) -> Iterator[Sentence]:
        """The input after what is done, which must be what was done."""
        for number, done in enumerate(self.sentences(), start=1):
            if next(sentences, None) != done:
                raise CorpusError(
                    f"{source}:{number}: is not what {self.folder} was begun with; give the same input, or remove "
                    "it to start again"
                )
        yield from sentences

    def append(self, sentence: Sentence, vectors: np.ndarray) -> None:
        """A sentence more; on disk within moments."""
        data = np.ascontiguousarray(vectors, dtype=self.layout.dtype).reshape(-1).data.cast("B")
        line = _line_of(sentence)
        checksum = crc32(data, crc32(line))
        with storage_errors(self.vectors):
            while data:
                data = data[self._files[0].write(data) :]
        self._pending.append(line[:-1] + b',"checksum":%d}\n' % checksum)
        self.count += 1
        self._held += vectors.nbytes
        if self._held > COMMIT_BYTES or time.monotonic() - self._last > COMMIT_SECONDS:
            self.commit()

    def commit(self) -> None:
        """Vectors first, then the lines that say they are there."""
        vectors, lines = self._files
        with storage_errors(self.folder):
            os.fsync(vectors.fileno())
            data = memoryview(b"".join(self._pending))
            self._pending, self._held, self._last = [], 0, time.monotonic()
            while data:
                data = data[lines.write(data) :]
            os.fsync(lines.fileno())

    def __enter__(self) -> "PartialFolder":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is not None and self.keep and not issubclass(kind, StorageError):
                self.commit()
        finally:
            for file in self._files:
                file.close()
        if kind is not None and not (self.keep and self.count):
            shutil.rmtree(self.folder, ignore_errors=True)

    def sentences(self) -> Iterator[Sentence]:
        """Those done."""
        with self.lines.open("rb") as file:
            for line in file:
                value = json.loads(line)
                yield Sentence(value["text"], value["tokens"], value.get("name"))

    def arrays(self) -> Iterator[tuple[Sentence, np.ndarray]]:
        """Those done, with their vectors, read one after another."""
        with self.vectors.open("rb") as file:
            for sentence in self.sentences():
                tokens = len(sentence.tokens)
                data = file.read(self.layout.size(tokens))
                yield sentence, np.frombuffer(data, dtype=self.layout.dtype).reshape(self.layout.shape(tokens))

    def matrix(self) -> np.ndarray:
        """All vectors as one array, mapped from the file; of pooled ones."""
        shape = (self.count, *self.layout.shape(0))
        return np.memmap(self.vectors, dtype=self.layout.dtype, mode="r", shape=shape)

    def finish(self) -> None:
        """The target from what is here, whole or not at all; then this goes."""
        target = self.folder / "result"
        with storage_errors(self.out):
            WRITERS[self.out.suffix.lower()](self, target)
            settle(target, self.out)
        shutil.rmtree(self.folder, ignore_errors=True)


def _line_of(sentence: Sentence) -> bytes:
    values = {name: value for name, value in sentence._asdict().items() if value is not None}
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _parse_line(line: bytes) -> tuple[Sentence, int] | None:
    """The sentence in a whole line of lines.jsonl, and the checksum; None where there is none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not line.endswith(b"\n") or not isinstance(value, dict):
        return None
    if value.keys() - {"name"} != {"text", "tokens", "checksum"}:
        return None
    text, tokens, name, checksum = value["text"], value["tokens"], value.get("name"), value["checksum"]
    if not isinstance(text, str) or not isinstance(tokens, list) or not all(isinstance(t, str) for t in tokens):
        return None
    return (Sentence(text, tokens, name), checksum) if name is None or isinstance(name, str) else None


def _checksum_of(vectors: BinaryIO, size: int, line: bytes) -> int:
    """Of a sentence's line and of its vectors, the next `size` bytes of a file, read a piece at a time."""
    checksum = crc32(line)
    for start in range(0, size, CHECKED):
        checksum = crc32(vectors.read(min(CHECKED, size - start)), checksum)
    return checksum
