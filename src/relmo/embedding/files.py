"""Vectors of a file's sentences, written to .h5, .parquet, .npz or .safetensors.

During a run everything is appended to a folder next to the target, OUT.partial:

    note.json       settings: the model's digest, layers, state, dtype …; a resumed run must have the same
    vectors.bin     the numbers of all sentences
    lines.jsonl     one line per sentence: its text and tokens, and a checksum of them and its vectors; written after
                    these are on disk

On resuming, a half-written tail is dropped; any other damage is an error, and so is an input that differs. At the end
the target is written under a temporary name in that folder and renamed, and the folder is removed.

Sentences are numbered from 0 by the lines of the input (a blank line is a sentence without tokens); in CoNLL-U, by its
sentences.

    .h5             "0", "1", …: (layers, tokens, dim), or (tokens, dim) of one layer; `sentence_to_index`, as in
                    `allennlp elmo`: one JSON object from a line's text to its number, the last of equal ones.
                    Additional attributes of each dataset: `tokens`, and `offsets` (tokens, 2) in the stripped text
    .npz            arrays "0", "1", … of the same shapes
    .safetensors    likewise
    .parquet        one row per token: line, position, token, start, end, vector. With all layers a vector has those of
                    all layers: vector.reshape(layers, dim); the schema's metadata has their number

With pooling, there is one vector per sentence: an array `vectors` (sentences, dim) or (sentences, layers, dim), in
.parquet one row per sentence: line, text, vector.

Row names of a table are written too: in .parquet a column `id`; in .h5 an attribute `id` of each dataset or, pooled, a
dataset `ids`; in .npz an array `ids`; in .safetensors `ids` in its metadata, as JSON.
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
from relmo.disk.files import import_pyarrow
from relmo.disk.outputs import folder_lock, is_special, move_into_place, refuse_existing, resolve_links, storage_errors
from relmo.embedding.engine import CutWords, pool
from relmo.embedding.formats import WRITERS
from relmo.errors import CorpusError, SettingError, StorageError
from relmo.settings.options import EmbedOptions
from relmo.store.folder import digest, named_tensors, write_json
from relmo.text.corpus import STDIN, Errors
from relmo.text.sources import SourceText, Split, TableColumns, read_texts

if TYPE_CHECKING:
    from relmo.models.bilm import BiLM


Pooling = Literal["mean", "max"]
Tokenizer = Literal["words", "whitespace"]
OnProgress = Callable[["EmbedProgress"], object]

COMMIT_SECONDS, COMMIT_BYTES = 2.0, 256 << 20  # lost in a crash, besides the current window
MAX_LINE_BYTES = 1 << 26  # of lines.jsonl
CHECKSUM_BYTES = 1 << 20  # read at a time
MAX_BUFFERED_BYTES = 64 << 20  # files up to this size are read once


class Sentence(NamedTuple):
    """A line of the input and its tokens; in a table, the name of its row."""

    text: str
    tokens: list[str]
    name: str | None = None


@dataclass
class EmbedProgress:
    """Progress: sentences done, their total if it is known, tokens of this run, sentences of earlier runs."""

    done: int
    total: int | None
    tokens: int = 0
    resumed: int = 0


class Summary(NamedTuple):
    """Summary of a run; `resumed` sentences were done earlier."""

    out: Path
    sentences: int
    resumed: int
    tokens: int
    seconds: float
    cut: CutWords


class Layout(NamedTuple):
    """Shape and type of the array of a sentence."""

    layers: int | None
    dim: int
    dtype: str
    pooled: bool

    def shape(self, tokens: int) -> tuple[int, ...]:
        """Return the shape of a sentence's array."""
        return (*([] if self.layers is None else [self.layers]), *([] if self.pooled else [tokens]), self.dim)

    def size(self, tokens: int) -> int:
        """Return the size of a sentence's array in bytes."""
        return int(np.prod(self.shape(tokens))) * np.dtype(self.dtype).itemsize


def _check_out(out: Path, *, resume: bool, overwrite: bool) -> None:
    """Check that the suffix is a known format and that nothing would be overwritten."""
    if out.suffix.lower() not in WRITERS:
        raise SettingError(f"{out}: Unknown format; the name of the output file must end in {', '.join(WRITERS)}.")
    if resume and overwrite:
        raise SettingError("--resume and --overwrite cannot be used together.")
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
    watch: OnProgress | None = None,
) -> Summary:
    """Embed the sentences of a text, a CoNLL-U file or a table (standard input if None) into the file `out`.

    `resume` continues an interrupted run after its last complete sentence, with the same result. Carried states are
    not saved, so a run with them cannot be resumed.
    """
    source, out, options = STDIN if source is None else source, Path(out), options or EmbedOptions()
    _check_out(out, resume=resume, overwrite=overwrite)
    if dtype not in ("float32", "float16"):
        raise SettingError(f"Unknown dtype {dtype!r}; choose 'float32' or 'float16'.")
    if resume and options.state != "reset":
        raise SettingError(f"A run with state '{options.state}' cannot be resumed: states are not saved. Start again.")
    options.check_for(model.network.layer_count)
    layout = make_layout(model, options, pooling, dtype)
    note = make_note(model, options, pooling, layout)
    partial = PartialFolder(out, layout, note, resumable=options.state == "reset")

    def read() -> Iterator[SourceText]:
        return read_texts(source, columns=columns, split=split, errors=errors)

    texts, total = read(), None
    # A file is read to its end first, so that errors are found before anything is embedded.
    if Path(source).is_file() and Path(source).stat().st_size <= MAX_BUFFERED_BYTES:
        buffered = list(texts)
        texts, total = iter(buffered), len(buffered)
    elif Path(source).is_file():
        total = sum(1 for _ in texts)
        texts = read()
    job = EmbedJob(partial, options, pooling, total, watch)
    return job.run(model, texts, source, resume=resume, overwrite=overwrite)


class EmbedJob(NamedTuple):
    """A run that fills a folder OUT.partial and writes OUT."""

    partial: "PartialFolder"
    options: EmbedOptions
    pooling: Pooling | None = None
    total: int | None = None
    watch: OnProgress | None = None

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
        """Embed the texts of `source`. `forget` clears the model's cache of words before the file is written."""
        partial, start, cut = self.partial, time.monotonic(), model.embedder.cut_words()
        remaining = partial.skip_done((_tokenize(text, model) for text in texts), source)
        queue: deque[Sentence] = deque()  # the model reads ahead

        def read_tokens() -> Iterator[list[str]]:
            for sentence in remaining:
                queue.append(sentence)
                yield sentence.tokens

        arrays = model.embedder.stream(read_tokens(), self.options, cut)
        with _exclusive(partial.folder):
            with partial.open(resume=resume, overwrite=overwrite):
                progress = EmbedProgress(partial.count, self.total, resumed=partial.count)
                for vectors in arrays:
                    sentence = queue.popleft()
                    partial.append(sentence, vectors if self.pooling is None else pool(vectors, self.pooling))
                    progress.done += 1
                    progress.tokens += len(sentence.tokens)
                    if self.watch is not None:
                        self.watch(progress)
                partial.commit()
                if not partial.count:
                    raise CorpusError(f"{source}: The file is empty; it must have one sentence per line.")
            if forget:
                model.embedder.forget_words()
            partial.finish()
        return Summary(partial.out, progress.done, progress.resumed, progress.tokens, time.monotonic() - start, cut)


def make_layout(model: "BiLM", options: EmbedOptions, pooling: Pooling | None, dtype: str) -> Layout:
    """Return the layout of a model's vectors."""
    layers = model.network.layer_count if options.layers == "all" else None
    return Layout(layers, model.network.size, dtype, bool(pooling))


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Create and lock the folder; remove it at the end if it is empty."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with folder_lock(folder):
        try:
            yield
        finally:
            with suppress(OSError):
                folder.rmdir()


def make_note(model: "BiLM", options: EmbedOptions, pooling: Pooling | None, layout: Layout) -> dict[str, Any]:
    """Return everything besides the input that the vectors depend on."""
    text = model.settings.text
    note = {
        "model": digest({name: tensor.cpu() for name, tensor in named_tensors(model.network).items()}),
        "tokenizer": text.tokenizer,
        "lowercase": text.lowercase,
        "layers": options.layers,
        "pooling": pooling,
        "state": options.state,
        "dtype": layout.dtype,
        "precision": model.precision,
    }
    return note | ({"batch_size": options.batch_size} if options.state != "reset" else {})


def read_source(source: str | Path, model: "BiLM") -> Iterator[Sentence]:
    """Yield the sentences of a file, including blank lines."""
    return (_tokenize(text, model) for text in read_texts(source))


def _tokenize(source: SourceText, model: "BiLM") -> Sentence:
    if source.words is None:
        return Sentence(source.text.strip(), model.tokens(source.text), source.name)
    lowercase = model.settings.text.lowercase
    return Sentence(source.text, [word.lower() if lowercase else word for word in source.words], source.name)


def _partial_folder(out: Path) -> Path:
    with storage_errors(out):
        target = out if is_special(out) else resolve_links(out)
    return target.with_name(target.name + ".partial")


class PartialFolder:
    """The folder OUT.partial of an unfinished run; removed after an interruption unless `resumable`.

    `start` is the number of the first sentence, for shards of a larger text, in .parquet.
    """

    def __init__(self, out: Path, layout: Layout, note: dict[str, Any], *, resumable: bool, start: int = 0):
        self.out, self.layout, self.note = out, layout, note
        self.resumable, self.start = resumable, start
        self.folder = _partial_folder(out)
        self.vectors, self.lines = self.folder / "vectors.bin", self.folder / "lines.jsonl"
        self.count = 0

    def open(self, *, resume: bool, overwrite: bool = False) -> "PartialFolder":
        """Start a run, or resume it."""
        with storage_errors(self.folder):
            exists = (self.folder / "note.json").exists()
            if exists and not (resume or overwrite):
                resume_hint = "--resume to continue it, or " if self.resumable else ""
                raise StorageError(
                    f"{self.folder}: an earlier run was interrupted; add {resume_hint}--overwrite to start again"
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
        self._pending_bytes, self._commit_time = 0, time.monotonic()
        return self

    def _check_note(self) -> None:
        hint = f"remove {self.folder} to start again"
        note = read_json(self.folder / "note.json", hint, StorageError)
        for name in self.note | note:
            expected, actual = self.note.get(name), note.get(name)
            if expected != actual:
                setting = "another model" if name == "model" else f"{name:.40} {actual!r:.40}, not {expected!r:.40}"
                raise StorageError(
                    f"{self.folder}: was started with {setting}; resume it with the same settings, or remove it to "
                    "start again"
                )
        for path in (self.vectors, self.lines):
            check_regular(path, hint, StorageError)

    def _drop_tail(self) -> None:
        """Truncate the files to complete sentences: a whole line with all its vectors.

        Invalid lines at the end were cut by a kill; elsewhere, and if a checksum is wrong, the files are damaged.
        """
        total_bytes, lines, vectors, broken = self.vectors.stat().st_size, 0, 0, 0
        with self.lines.open("rb") as file, self.vectors.open("rb") as vectors_file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), start=1):
                entry = _parse_line(line)
                if entry is None:
                    broken = broken or number
                    continue
                sentence, checksum = entry
                size = self.layout.size(len(sentence.tokens))
                if vectors + size > total_bytes:
                    break
                if broken or checksum != _compute_checksum(vectors_file, size, _format_line(sentence)):
                    raise StorageError(
                        f"{self.lines}:{broken or number}: the sentence or its vectors are damaged (the checksum does "
                        f"not match); remove {self.folder} to start again"
                    )
                lines, vectors = lines + len(line), vectors + size
                self.count += 1
        os.truncate(self.lines, lines)
        os.truncate(self.vectors, vectors)
        for name in ("result", "index.json"):
            (self.folder / name).unlink(missing_ok=True)

    def skip_done(self, sentences: Iterator[Sentence], source: str | Path) -> Iterator[Sentence]:
        """Yield the input after the finished sentences, which must be the same."""
        for number, finished in enumerate(self.sentences(), start=1):
            if next(sentences, None) != finished:
                raise CorpusError(
                    f"{source}:{number}: differs from the input of {self.folder}; use the same input, or remove the "
                    "folder to start again"
                )
        yield from sentences

    def append(self, sentence: Sentence, vectors: np.ndarray) -> None:
        """Append a sentence; it is committed within seconds."""
        data = np.ascontiguousarray(vectors, dtype=self.layout.dtype).reshape(-1).data.cast("B")
        line = _format_line(sentence)
        checksum = crc32(data, crc32(line))
        with storage_errors(self.vectors):
            while data:
                data = data[self._files[0].write(data) :]
        self._pending.append(line[:-1] + b',"checksum":%d}\n' % checksum)
        self.count += 1
        self._pending_bytes += vectors.nbytes
        if self._pending_bytes > COMMIT_BYTES or time.monotonic() - self._commit_time > COMMIT_SECONDS:
            self.commit()

    def commit(self) -> None:
        """Write vectors to disk, then their lines."""
        vectors, lines = self._files
        with storage_errors(self.folder):
            os.fsync(vectors.fileno())
            data = memoryview(b"".join(self._pending))
            self._pending, self._pending_bytes, self._commit_time = [], 0, time.monotonic()
            while data:
                data = data[lines.write(data) :]
            os.fsync(lines.fileno())

    def __enter__(self) -> "PartialFolder":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is not None and self.resumable and not issubclass(kind, StorageError):
                self.commit()
        finally:
            for file in self._files:
                file.close()
        if kind is not None and not (self.resumable and self.count):
            shutil.rmtree(self.folder, ignore_errors=True)

    def sentences(self) -> Iterator[Sentence]:
        """Yield the finished sentences."""
        with self.lines.open("rb") as file:
            for line in file:
                record = json.loads(line)
                yield Sentence(record["text"], record["tokens"], record.get("name"))

    def arrays(self) -> Iterator[tuple[Sentence, np.ndarray]]:
        """Yield the finished sentences with their vectors."""
        with self.vectors.open("rb") as file:
            for sentence in self.sentences():
                tokens = len(sentence.tokens)
                data = file.read(self.layout.size(tokens))
                yield sentence, np.frombuffer(data, dtype=self.layout.dtype).reshape(self.layout.shape(tokens))

    def matrix(self) -> np.ndarray:
        """Return all pooled vectors as one memory-mapped array."""
        shape = (self.count, *self.layout.shape(0))
        return np.memmap(self.vectors, dtype=self.layout.dtype, mode="r", shape=shape)

    def finish(self) -> None:
        """Write the target atomically and remove the folder."""
        target = self.folder / "result"
        with storage_errors(self.out):
            WRITERS[self.out.suffix.lower()](self, target)
            move_into_place(target, self.out)
        shutil.rmtree(self.folder, ignore_errors=True)


def _format_line(sentence: Sentence) -> bytes:
    record = {name: value for name, value in sentence._asdict().items() if value is not None}
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _parse_line(line: bytes) -> tuple[Sentence, int] | None:
    """Return the sentence and checksum of a line of lines.jsonl; None if it is invalid."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not line.endswith(b"\n") or not isinstance(record, dict):
        return None
    if record.keys() - {"name"} != {"text", "tokens", "checksum"}:
        return None
    text, tokens, name, checksum = record["text"], record["tokens"], record.get("name"), record["checksum"]
    if not isinstance(text, str) or not isinstance(tokens, list) or not all(isinstance(t, str) for t in tokens):
        return None
    return (Sentence(text, tokens, name), checksum) if name is None or isinstance(name, str) else None


def _compute_checksum(vectors: BinaryIO, size: int, line: bytes) -> int:
    """Return the checksum of a sentence's line and its vectors, the next `size` bytes of a file."""
    checksum = crc32(line)
    for start in range(0, size, CHECKSUM_BYTES):
        checksum = crc32(vectors.read(min(CHECKSUM_BYTES, size - start)), checksum)
    return checksum
