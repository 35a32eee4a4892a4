"""Surprisal: the number of bits that each word of a text takes, given its context, for studies of reading.

    surprisal(w) = -log2 p(w | preceding text)                    Hale 2001;  Levy 2008
    entropy(w)   = -sum_v p(v | preceding) log2 p(v | preceding)  of the prediction at the word's first symbol
    reduction(w) = entropy(w) - entropy after the word            Hale 2006;  Frank 2013, with one step of look-ahead

Each symbol (character or token) belongs to one row, a word, so that the sum over all rows, including ends, is the
negative log-likelihood of `evaluate`. Models read blocks of lines with the state carried, or batches of independent
lines, by their methods `read_line` and `score_lines`."""

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape as escape_html
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from relmo.disk.files import import_pyarrow
from relmo.disk.outputs import atomic, refuse_existing
from relmo.errors import SettingError
from relmo.models.adapt import LineAdapter
from relmo.models.evaluate import UNROLL, full_precision
from relmo.nn.recurrence import State
from relmo.settings.bilm import BiLMTextSettings
from relmo.settings.fields import check_sentences
from relmo.settings.lm import TextSettings
from relmo.settings.options import SurprisalOptions
from relmo.text.sources import SourceText, fold_case, split_lines
from relmo.text.tokenize import SPLITTERS, Token, place_tokens, split_whitespace
from relmo.text.vocabulary import END, escape

if TYPE_CHECKING:
    from relmo.models.sequence_model import SequenceModel

BLOCK = 1 << 14  # symbols per block of lines
BATCH_LINES = 64  # independent lines per batch
MAX_PROBS = {"cuda": 1 << 26, "cpu": 1 << 22}  # probabilities in memory; on a CPU more of them are slower
COLUMNS = ("line", "position", "word", "start", "end", "surprisal", "entropy", "entropy_reduction", "unknown")
MAX_NOTEBOOK_ROWS = 200
ROW_GROUP = 1 << 16  # of a .parquet file
DELIMITERS = {".tsv": "\t", ".csv": ","}
FORMATS = (*DELIMITERS, ".parquet")
Texts = str | Iterable[str | Sequence[str]]
"""A text, or several texts or sentences, each a string or a list of words (for analyses, of symbols)."""


@dataclass(frozen=True)
class WordSurprisal:
    """Row of a table: a word, its position, its surprisal, the entropy before its first symbol and what the word
    reduces it by, all in bits."""

    line: int  # from 1; in CoNLL-U, the number of the sentence
    position: int  # in the line, from 1; 0 for the beginning of a sentence
    word: str
    start: int  # character offset in the line
    end: int
    surprisal: float
    entropy: float
    unknown: bool  # whether the model's vocabulary lacks it, or a part of it
    is_end: bool = False
    entropy_reduction: float | None = None  # negative if the entropy rises; None for ends
    source: SourceText = field(default=SourceText(""), repr=False, compare=False)

    def to_record(self) -> dict[str, Any]:
        """Return the columns of the row: those of the table that the text came from, then COLUMNS."""
        return join_columns(self.source, {name: getattr(self, name) for name in COLUMNS})


@dataclass(frozen=True)
class SurprisalTable(Sequence[WordSurprisal]):
    """Words of a text with their surprisal. `total_bits` is the sum over words and ends, included as rows or not."""

    rows: list[WordSurprisal]
    total_bits: float

    @classmethod
    def from_text(cls, model: "SequenceModel", text: Texts, options: SurprisalOptions) -> Self:
        """Compute the table of a text, or of its sentences."""
        if isinstance(text, str):
            lines = split_lines(text)
        else:
            lines = (
                SourceText(line, line=n) if isinstance(line, str) else SourceText(" ".join(line), list(line), n)
                for n, line in enumerate(check_sentences(text, "surprisal"), start=1)
            )
        return cls.from_sources(model, lines, options)

    @classmethod
    def from_sources(cls, model: "SequenceModel", texts: Iterable[SourceText], options: SurprisalOptions) -> Self:
        """Compute the table of texts, such as those of `read_texts`, whose columns are copied."""
        rows = list(model.surprisal_rows(texts, options))
        return cls([row for row in rows if options.ends or not row.is_end], sum(row.surprisal for row in rows))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def to_dict(self) -> dict[str, list[Any]]:
        """Return the columns by name, as `pandas.DataFrame` takes them."""
        records = [row.to_record() for row in self.rows]
        return {name: [record[name] for record in records] for name in (records[0] if records else COLUMNS)}

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame`; raise `SettingError` if pandas is not installed."""
        try:
            import pandas  # type: ignore[import-not-found, import-untyped, unused-ignore]
        except ImportError:
            raise SettingError("to_pandas needs the package pandas; try: pip install pandas") from None
        return pandas.DataFrame(self.to_dict())

    def totals(self) -> list[dict[str, Any]]:
        """Return one record per line: words, unknown words, total and mean surprisal, and mean entropy."""
        return list(sum_lines(self.rows))

    def to_tsv(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the table with tabs between its columns."""
        self._write(Path(path), ".tsv", overwrite)

    def to_csv(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the table with commas between its columns."""
        self._write(Path(path), ".csv", overwrite)

    def to_parquet(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the table as .parquet, which needs the package pyarrow."""
        self._write(Path(path), ".parquet", overwrite)

    def _write(self, path: Path, suffix: str, overwrite: bool) -> None:
        refuse_existing(path, overwrite=overwrite)
        write_table(path, (row.to_record() for row in self.rows), suffix)

    def _repr_html_(self) -> str:
        names, *rows = table_lines(row.to_record() for row in self.rows[:MAX_NOTEBOOK_ROWS])
        head = "".join(f"<th>{escape_html(name)}</th>" for name in names)
        body = "".join(f"<tr>{''.join(f'<td>{escape_html(cell)}</td>' for cell in row)}</tr>" for row in rows)
        num_hidden = len(self) - MAX_NOTEBOOK_ROWS
        note = f"<p>{num_hidden:,} more rows</p>" if num_hidden > 0 else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}"


def check_table(path: Path) -> None:
    """Raise `SettingError` if a table cannot be written under this name."""
    if path.suffix.lower() not in FORMATS:
        raise SettingError(f"{path}: unknown format; a table must end in {', '.join(FORMATS)}")
    if path.suffix.lower() == ".parquet":
        import_pyarrow()


def join_columns(source: SourceText, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record after the columns of its text's table; of equal names, that of the table gets a prefix."""
    if source.columns is None:
        return dict(record)
    joined: dict[str, Any] = {} if source.row is None else {"row": source.row}
    for name, value in source.columns.items():
        while name in joined or name in record:
            name = f"input_{name}"
        joined[name] = value
    return joined | dict(record)


def sum_lines(rows: Iterable[WordSurprisal]) -> Iterator[dict[str, Any]]:
    """Yield one record per line that has words, with the ends in its total surprisal, or one per region of a line; a
    word belongs to the first region that it overlaps."""
    for _, group in groupby(rows, key=lambda row: id(row.source)):  # with --split, the numbers of lines may be equal
        line = list(group)
        source = line[0].source
        spans = source.regions or [(-1, len(source.text) + 1)]  # with the ends of the line
        members: list[list[WordSurprisal]] = [[] for _ in spans]
        for row in line:
            overlaps = (i for i, (start, end) in enumerate(spans) if start < row.end and row.start < end)
            if (i := next(overlaps, None)) is not None:
                members[i].append(row)
        for number, (span, parts) in enumerate(zip(spans, members, strict=True), start=1):
            if words := [row for row in parts if not row.is_end]:
                region = {"region": number, "region_text": source.text[slice(*span)]} if source.regions else {}
                sums = {
                    "words": len(words),
                    "unknown": sum(row.unknown for row in words),
                    "surprisal": sum(row.surprisal for row in parts),
                    "mean_surprisal": sum(row.surprisal for row in words) / len(words),
                    "mean_entropy": sum(row.entropy for row in words) / len(words),
                }
                yield join_columns(source, {"line": line[0].line} | region | sums)


def write_table(path: Path, records: Iterator[Mapping[str, Any]], suffix: str | None = None) -> None:
    """Write records to a file, atomically, in the format of a suffix, by default that of its name."""
    suffix = path.suffix.lower() if suffix is None else suffix
    if suffix != ".parquet":
        with atomic(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, delimiter=DELIMITERS[suffix], lineterminator="\n").writerows(table_lines(records))
        return
    pyarrow = import_pyarrow()
    batch = list(islice(records, 1))
    types = {str: pyarrow.string(), bool: pyarrow.bool_(), int: pyarrow.int64()}  # others are numbers or None
    columns = batch[0] if batch else dict.fromkeys(COLUMNS)
    schema = pyarrow.schema([(name, types.get(type(value), pyarrow.float64())) for name, value in columns.items()])
    with atomic(path) as temporary, pyarrow.parquet.ParquetWriter(temporary, schema) as writer:
        while batch:
            writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))
            batch = list(islice(records, ROW_GROUP))


def table_lines(records: Iterator[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Yield the names of the columns, then the records, as text."""
    record = next(records, None)
    yield list(COLUMNS if record is None else record)
    while record is not None:
        cells = (int(value) if isinstance(value, bool) else value for value in record.values())
        yield ["" if cell is None else f"{cell:.6f}" if isinstance(cell, float) else str(cell) for cell in cells]
        record = next(records, None)


@dataclass(frozen=True)
class ReadLine:
    """Line as a model reads it."""

    source: SourceText
    words: list[Token]  # the rows
    symbols: list[str]  # predicted ones in text order, without ends
    owners: np.ndarray  # (symbols,): index of the word that each belongs to
    ends: list[str]  # symbols predicted after the line (backwards, before it)
    is_open: bool = False  # no end follows; one is read for the entropy after the last word, and gets no row


Rows = Sequence[Sequence[ReadLine]]  # of a batch, each of consecutive lines


def read_line(
    source: SourceText, text: TextSettings | BiLMTextSettings, options: SurprisalOptions, ends: list[str]
) -> ReadLine:
    """Split a line into the symbols of a model with these text settings, and into rows.

    Whitespace belongs to the word before it, since a word is not complete until something ends it (Oh & Schuler 2024,
    Leading whitespaces of language models' subword vocabulary pose a confound for calculating word probabilities;
    Pimentel & Meister 2024, How to compute the probability of a word), or optionally to the word after it."""
    lowercase, by_character = text.lowercase, getattr(text, "unit", "word") == "char"
    if source.words is not None and not by_character:  # given tokens are not split again
        words = place_tokens(source.words)
        symbols = [word.lower() if lowercase else word for word in source.words]
        return ReadLine(source, words, symbols, np.arange(len(words)), ends or [END], is_open=not ends)
    folded, origins = fold_case(source.text) if lowercase else (source.text, np.arange(len(source.text) + 1))
    if by_character:
        words = SPLITTERS[options.rows or "words"](source.text) if source.words is None else place_tokens(source.words)
        symbols = list(folded.replace("\0", "\ufffd"))
        if options.space == "before":  # the first word that has not ended
            owners = np.searchsorted([word.end for word in words], origins[:-1], side="right")
        else:  # the last word that has begun
            owners = np.searchsorted([word.start for word in words], origins[:-1], side="right") - 1
        owners = np.clip(owners, 0, max(len(words) - 1, 0))
    else:
        tokens = SPLITTERS[text.tokenizer](folded)
        symbols = [token.text for token in tokens]
        spans = [(int(origins[token.start]), int(origins[token.end - 1]) + 1) for token in tokens]  # before folding
        words = [Token(source.text[start:end], start, end) for start, end in spans]
        if options.rows == "whitespace":
            words = split_whitespace(source.text)
        owners = np.searchsorted([word.start for word in words], [start for start, _ in spans], side="right") - 1
    return ReadLine(source, words, symbols, owners.astype(np.int64), ends or [END], is_open=not ends)


def surprisal_rows(
    model: "SequenceModel", texts: Iterable[SourceText], options: SurprisalOptions
) -> Iterator[WordSurprisal]:
    """Yield the rows of the table, including ends, in the order of the text."""
    vocabulary, backward = model.vocabulary, options.direction == "backward"
    assert vocabulary is not None
    carry: Any = None
    adapter = None if options.adapt is None else LineAdapter(model, options.adapt)
    score_lines = model.score_lines if adapter is None else adapter.score_lines
    sources = iter(texts)
    source = next(sources, None)
    while source is not None:
        lines: list[ReadLine] = []
        sizes: list[int] = []  # predictions per line
        total = 0
        while source is not None and total <= BLOCK:
            following = next(sources, None)
            line = model.read_line(source, options, last=following is None)
            if line is not None:
                lines.append(line)
                sizes.append(len(line.symbols) + len(line.ends))
                total += sizes[-1]
            source = following
        batches = [[[*range(len(lines))]]] if lines else []  # of rows of consecutive lines: one row
        if options.context == "sentence":  # one line per row, similar lengths together
            order = sorted(range(len(lines)), key=sizes.__getitem__)
            starts = range(0, len(order), BATCH_LINES)
            batches = [[[i] for i in order[start : start + BATCH_LINES]] for start in starts]
        if adapter is not None:  # one after the other
            batches = [[[i]] for i, size in enumerate(sizes) if size]
        scores = [np.empty((2, 0))] * len(lines)
        for batch in batches:
            with torch.no_grad(), full_precision():
                batch_scores, state = score_lines([[lines[i] for i in row] for row in batch], options, carry)
            carry = state if options.context == "text" else None
            for b, row in enumerate(batch):
                bounds = np.cumsum([sizes[i] for i in row])
                pieces = np.split(batch_scores[:, b, : bounds[-1]], bounds[:-1], axis=1)
                for i, piece in zip(row, pieces, strict=True):
                    scores[i] = piece
        for line, line_scores in zip(lines, scores, strict=True):
            # Scores (2, N) are in the order of reading; symbols are summed to words, and the end.
            bits, entropy = line_scores
            if backward:  # to the order of the text; the end stays last
                bits, entropy = np.concatenate([line_scores[:, -2::-1], line_scores[:, -1:]], axis=1)
            count = len(line.words)
            owners = np.concatenate([line.owners, np.full(len(line.ends), count, dtype=np.int64)])
            sums = np.bincount(owners, weights=bits, minlength=count + 1).tolist()
            firsts = np.searchsorted(owners, np.arange(count + 1))  # owners increase: a word's symbols are adjacent
            lasts = np.searchsorted(owners, np.arange(count + 1), side="right") - 1
            unknown = np.zeros(count + 1, dtype=bool)
            np.logical_or.at(unknown, owners, vocabulary.ids([*line.symbols, *line.ends]) == vocabulary.unknown)
            rows = [(i, i + 1, token) for i, token in enumerate(line.words)]
            if not line.is_open:
                offset = 0 if backward else len(line.source.text)
                end = (count, 0 if backward else count + 1, Token(escape("".join(line.ends)), offset, offset))
                rows = [end, *rows] if backward else [*rows, end]
            for i, position, token in rows:
                place = (line.source.line, position, token.text, token.start, token.end)
                first = lasts[i] if backward else firsts[i]  # the symbol that is read first
                scored = (sums[i], float(entropy[first]), bool(unknown[i]))
                after = firsts[i] - 1 if backward else lasts[i] + 1  # backward, -1 is the end, which is read last
                reduction = None if i == count else float(entropy[first] - entropy[after])
                yield WordSurprisal(*place, *scored, i == count, reduction, line.source)


def score_windows(
    read: Callable[[slice, State], tuple[Tensor, State]],
    distribution: Callable[[Tensor], Tensor],
    targets: Tensor,
    state: State,
    vocab_size: int,
    adapter: LineAdapter | None = None,
) -> tuple[np.ndarray, State]:
    """Return surprisal and entropy (2, B, T), in bits, at targets (B, T), and the final state; `read` returns features
    (B, t, D) of a window and the state after it, `distribution` log-probabilities (N, V) of features (N, D). The
    adapter receives the losses of each window."""
    batch_size = max(1, MAX_PROBS["cuda" if targets.is_cuda else "cpu"] // vocab_size)
    windows = []
    length = targets.shape[1]
    bounds = {*range(0, length, UNROLL), length, *(() if adapter is None else adapter.bounds)}
    for start, stop in pairwise(sorted(bounds)):
        window = slice(start, stop)
        features, state = read(window, state)
        y = targets[:, window]
        losses, entropy = [], []
        for x, ids in zip(features.flatten(0, 1).split(batch_size), y.flatten().split(batch_size), strict=True):
            log_p = distribution(x)  # (n, V)
            losses.append(-log_p.gather(1, ids.unsqueeze(1)).squeeze(1).double())
            entropy.append(torch.special.entr(log_p.detach().exp()).sum(dim=1, dtype=torch.float64))
        nll = torch.cat(losses)
        if adapter is not None:
            adapter.on_losses(nll, stop)
            nll, state = nll.detach(), tuple(tensor.detach() for tensor in state)
        scores = torch.stack([nll, torch.cat(entropy)]).cpu().numpy() / math.log(2)
        windows.append(scores.reshape(2, *y.shape))
    return np.concatenate(windows, axis=2), state
