"""Vectors of a file's sentences, written to .h5, .parquet, .npz or .safetensors (`formats`).

During a run everything is appended to a folder next to the target, OUT.partial:

    note.json       settings: the model's digest, layers, state, dtype …; a resumed run must have the same
    vectors.bin     the numbers of all sentences
    lines.jsonl     one line per sentence: its text and tokens, and a checksum of them and its vectors; written after
                    these are on disk

On resuming, a half-written tail is dropped; any other damage is an error, and so is an input that differs. At the end
the target is written under a temporary name in that folder and renamed, and the folder is removed.
"""

import json
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from zlib import crc32

import msgspec
import numpy as np

from relmo.disk.files import check_regular, import_pyarrow, read_json
from relmo.disk.outputs import (
    AppendLog,
    folder_lock,
    is_special,
    move_into_place,
    read_lines,
    refuse_existing,
    resolve_links,
    storage_errors,
)
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


class Sentence(NamedTuple):
    """A line of the input and its tokens; in a table, the name of its row."""

    text: str
    tokens: list[str]
    name: str | None = None


class StoredLine(msgspec.Struct, forbid_unknown_fields=True):
    """A line of lines.jsonl."""

    text: str
    tokens: list[str]
    checksum: Any
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
    not saved, so a run with them cannot be resumed."""
    source, out, options = STDIN if source is None else source, Path(out), options or EmbedOptions()
    if out.suffix.lower() not in WRITERS:
        raise SettingError(f"{out}: Unknown format; the name of the output file must end in {', '.join(WRITERS)}.")
    if resume and overwrite:
        raise SettingError("--resume and --overwrite cannot be used together.")
    refuse_existing(out, overwrite=overwrite or (resume and _partial_folder(out).exists()))
    if out.suffix.lower() == ".parquet":
        import_pyarrow()
    if dtype not in ("float32", "float16"):
        raise SettingError(f"Unknown dtype {dtype!r}; choose 'float32' or 'float16'.")
    if resume and options.state != "reset":
        raise SettingError(f"A run with state '{options.state}' cannot be resumed: states are not saved. Start again.")
    options.check_for(model.network.layer_count)
    folder = PartialFolder(out, model, options, make_note(model, options, pooling, dtype))

    read = partial(read_texts, source, columns=columns, split=split, errors=errors)
    # A file is read to its end first, so that errors are found before anything is embedded.
    total = sum(1 for _ in read()) if Path(source).is_file() else None
    return folder.fill(read(), source, resume=resume, overwrite=overwrite, total=total, watch=watch)


def make_note(model: "BiLM", options: EmbedOptions, pooling: Pooling | None, dtype: str) -> dict[str, Any]:
    """Return everything besides the input that the vectors depend on."""
    text = model.settings.text
    note = {
        "model": digest({name: tensor.cpu() for name, tensor in named_tensors(model.network).items()}),
        "tokenizer": text.tokenizer,
        "lowercase": text.lowercase,
        "layers": options.layers,
        "pooling": pooling,
        "state": options.state,
        "dtype": dtype,
        "precision": model.precision,
    }
    return note | ({"batch_size": options.batch_size} if options.state != "reset" else {})


def check_note(folder: Path, note: dict[str, Any]) -> None:
    """Raise `StorageError` if the earlier run in a folder had another note."""
    hint = f"remove {folder} to start again"
    earlier = read_json(folder / "note.json", hint, StorageError)
    for name in note | earlier:
        expected, actual = note.get(name), earlier.get(name)
        if expected != actual:
            setting = "another model" if name == "model" else f"{name:.40} {actual!r:.40}, not {expected!r:.40}"
            raise StorageError(f"{folder}: was started with {setting}; resume it with the same settings, or {hint}")


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
    """Folder OUT.partial of an unfinished run, with a note from `make_note`; `start` numbers a shard's sentences."""

    def __init__(self, out: Path, model: "BiLM", options: EmbedOptions, note: dict[str, Any], *, start: int = 0):
        self.out, self.model, self.options, self.note, self.start = out, model, options, note, start
        self.layers = model.network.layer_count if options.layers == "all" else None
        self.dim, self.dtype, self.pooling = model.network.size, note["dtype"], note["pooling"]
        self.resumable = options.state == "reset"
        self.folder = _partial_folder(out)
        self.vectors, self.lines = self.folder / "vectors.bin", self.folder / "lines.jsonl"
        self.count = 0

    def shape(self, tokens: int) -> tuple[int, ...]:
        """Return the shape of a sentence's array."""
        return (*([] if self.layers is None else [self.layers]), *([] if self.pooling else [tokens]), self.dim)

    def size(self, tokens: int) -> int:
        """Return the size of a sentence's array in bytes."""
        return int(np.prod(self.shape(tokens))) * np.dtype(self.dtype).itemsize

    def fill(
        self,
        texts: Iterator[SourceText],
        source: str | Path,
        *,
        resume: bool,
        overwrite: bool = False,
        total: int | None = None,
        watch: OnProgress | None = None,
        forget: bool = True,
    ) -> Summary:
        """Embed the texts of `source` and write OUT. `forget` clears the model's cache of words before that."""
        start, embedder = time.monotonic(), self.model.embedder
        cut, queue = embedder.cut_words(), deque[Sentence]()  # the model reads ahead

        def read_tokens() -> Iterator[list[str]]:
            sentences = (_tokenize(text, self.model) for text in texts)
            for number, finished in enumerate(self.sentences(), start=1):
                if next(sentences, None) != finished:
                    raise CorpusError(
                        f"{source}:{number}: differs from the input of {self.folder}; use the same input, or remove "
                        "the folder to start again"
                    )
            for sentence in sentences:
                queue.append(sentence)
                yield sentence.tokens

        arrays = embedder.stream(read_tokens(), self.options, cut)
        with storage_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with folder_lock(self.folder):
            try:
                with self.open(resume=resume, overwrite=overwrite):
                    progress, commit_time = EmbedProgress(self.count, total, resumed=self.count), time.monotonic()
                    for vectors in arrays:
                        sentence = queue.popleft()
                        vectors = pool(vectors, self.pooling) if self.pooling else vectors
                        data = np.ascontiguousarray(vectors, dtype=self.dtype).reshape(-1).data.cast("B")
                        line = _format_line(sentence)
                        self.log.append(line[:-1] + b',"checksum":%d}\n' % crc32(data, crc32(line)), data)
                        self.count += 1
                        if self.log.num_pending > COMMIT_BYTES or time.monotonic() - commit_time > COMMIT_SECONDS:
                            self.log.commit()
                            commit_time = time.monotonic()
                        progress.done += 1
                        progress.tokens += len(sentence.tokens)
                        if watch is not None:
                            watch(progress)
                    self.log.commit()
                    if not self.count:
                        raise CorpusError(f"{source}: The file is empty; it must have one sentence per line.")
                if forget:
                    embedder.forget_words()
                target = self.folder / "result"
                with storage_errors(self.out):
                    WRITERS[self.out.suffix.lower()](self, target)
                    move_into_place(target, self.out)
                shutil.rmtree(self.folder, ignore_errors=True)
            finally:
                with suppress(OSError):  # it is not empty
                    self.folder.rmdir()
        return Summary(self.out, progress.done, progress.resumed, progress.tokens, time.monotonic() - start, cut)

    @contextmanager
    def open(self, *, resume: bool, overwrite: bool = False) -> Iterator[None]:
        """Open the files of a new or resumed run; an interruption commits what is there, or removes the folder."""
        with storage_errors(self.folder):
            exists = (self.folder / "note.json").exists()
            if exists and not (resume or overwrite):
                resume_hint = "--resume to continue it, or " if self.resumable else ""
                raise StorageError(
                    f"{self.folder}: an earlier run was interrupted; add {resume_hint}--overwrite to start again"
                )
            lines, vectors = self._check_finished() if exists and resume else (0, 0)
            self.log = AppendLog(self.lines, self.vectors, size=lines, data_size=vectors)
            if not (exists and resume):
                write_json(self.folder / "note.json", self.note)
        try:
            with self.log:
                try:
                    yield
                except BaseException as error:
                    if self.resumable and not isinstance(error, StorageError):
                        self.log.commit()
                    raise
        except BaseException:
            if not (self.resumable and self.count):
                shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _check_finished(self) -> tuple[int, int]:
        """Count the complete sentences of an earlier run, and return the sizes of their lines and vectors."""
        hint = f"remove {self.folder} to start again"
        check_note(self.folder, self.note)
        for path in (self.vectors, self.lines):
            check_regular(path, hint, StorageError)
        # Invalid lines at the end were cut by a kill; elsewhere, and if a checksum is wrong, the files are damaged.
        total_bytes, lines, vectors, broken = self.vectors.stat().st_size, 0, 0, 0
        with self.vectors.open("rb") as vectors_file:
            for number, line in enumerate(read_lines(self.lines, MAX_LINE_BYTES), start=1):
                try:
                    record = msgspec.convert(json.loads(line) if line.endswith(b"\n") else None, StoredLine)
                except (ValueError, RecursionError):
                    broken = broken or number
                    continue
                size = self.size(len(record.tokens))
                if vectors + size > total_bytes:
                    break
                actual = crc32(_format_line(Sentence(record.text, record.tokens, record.name)))
                for start in range(0, size, CHECKSUM_BYTES):
                    actual = crc32(vectors_file.read(min(CHECKSUM_BYTES, size - start)), actual)
                if broken or record.checksum != actual:
                    raise StorageError(
                        f"{self.lines}:{broken or number}: the sentence or its vectors are damaged (the checksum does "
                        f"not match); {hint}"
                    )
                lines, vectors = lines + len(line), vectors + size
                self.count += 1
        for name in ("result", "index.json"):
            (self.folder / name).unlink(missing_ok=True)
        return lines, vectors

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
                data = file.read(self.size(tokens))
                yield sentence, np.frombuffer(data, dtype=self.dtype).reshape(self.shape(tokens))

    def matrix(self) -> np.ndarray:
        """Return all pooled vectors as one memory-mapped array."""
        return np.memmap(self.vectors, dtype=self.dtype, mode="r", shape=(self.count, *self.shape(0)))


def _format_line(sentence: Sentence) -> bytes:
    record = {name: value for name, value in sentence._asdict().items() if value is not None}
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
