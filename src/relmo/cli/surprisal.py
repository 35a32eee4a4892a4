"""`relmo surprisal MODEL [FILE]`"""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from relmo.cli.output import Overwrite
from relmo.cli.sources import SourceOptions, Tokenizer
from relmo.cli.terminal import count_bar, print_json, say
from relmo.disk.outputs import refuse_existing
from relmo.errors import CorpusError
from relmo.settings.arguments import PathName
from relmo.settings.surprisal import SurprisalOptions

if TYPE_CHECKING:
    from relmo.models.surprisal import WordSurprisal
    from relmo.models.word_tables import SurprisalTotals

MAX_UNKNOWN_SHARE = 0.2  # more is reported


def surprisal(
    model: PathName,
    file: PathName | None = None,
    *,
    out: Path | None = None,
    options: Annotated[SurprisalOptions, Parameter(name="*")] = SurprisalOptions(),  # noqa: B008
    source: Annotated[SourceOptions, Parameter(name="*")] = SourceOptions(),  # noqa: B008
    tokenizer: Tokenizer = None,
    overwrite: Overwrite = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Say how surprising each word of a text is to a language model: a table with a row for each word.

    The columns are line, position, word, start and end (its characters in the line), surprisal in bits, entropy in bits
    before the word, and unknown (1 where the vocabulary lacks it). Lines and positions count from 1.

        echo "The old man the boat." | relmo surprisal small

        relmo surprisal models/mine story.txt --out story.tsv

        relmo surprisal small stimuli.csv --column sentence --context sentence --out stimuli.parquet

        echo "The horse raced past the barn fell." | relmo surprisal small

    Parameters
    ----------
    model
        The folder of a language model of any kind, or small, which ships with relmo.
    file
        Text (.gz, .xz, .zst too), a sentence a line; .conllu; or a table, .csv or .tsv. By default standard input is
        read.
    out
        The file to write. Its ending says the format: .tsv, .csv or .parquet. By default the table is printed with tabs
        between its columns.
    device
        Where to compute; auto takes a GPU if there is one.
    json
        Print one JSON object: words, unknown, word_bits, end_bits, bits, bits_per_word, and out or the rows.
    quiet
        Show no progress.
    """
    from relmo.loading import FORWARDS, load
    from relmo.models.word_tables import check_table, table_lines, write_table
    from relmo.text.corpus import STDIN
    from relmo.text.sources import read_texts

    if out is not None:
        check_table(out)
        refuse_existing(out, overwrite=overwrite)
    loaded = load(model, kinds=FORWARDS, device=device).splitting(tokenizer)
    path = STDIN if file is None else file
    texts = read_texts(path, **source.reading())
    with count_bar("words", quiet=quiet or out is None) as bar:
        counted = _Counted(loaded.surprisal_rows(texts, options), path, ends=options.ends, watch=bar)
        if out is not None:
            write_table(out, iter(counted))
        elif json:
            rows = [_as_object(row) for row in counted]
        else:
            csv.writer(sys.stdout, delimiter="\t", lineterminator="\n").writerows(table_lines(iter(counted)))
    if counted.totals.unknown > MAX_UNKNOWN_SHARE * counted.totals.words:
        share = counted.totals.unknown / counted.totals.words
        say(f"{share:.0%} of the words are unknown to this model: is this text in its language?")
    if json:
        print_json({"model": model} | _summary(counted.totals) | ({"rows": rows} if out is None else {"out": str(out)}))
    elif out is not None and not quiet:
        print(_sentence(out, counted.totals))


class _Counted:
    """Rows as they pass, without those of ends unless they are wanted; `totals` are over all that have passed."""

    def __init__(self, rows: "Iterator[WordSurprisal]", source: str, *, ends: bool, watch: Any):
        from relmo.models.word_tables import SurprisalTotals

        self.rows, self.source, self.ends, self.watch = rows, source, ends, watch
        self.totals: SurprisalTotals = SurprisalTotals()

    def __iter__(self) -> "Iterator[WordSurprisal]":
        for row in self.rows:
            self.totals = self.totals.plus(row)
            self.watch(self.totals.words)
            if self.ends or not row.is_end:
                yield row
        if not self.totals.words:  # before a table of nothing is put in its place
            raise CorpusError(f"{self.source}: there is no word in it; give a text")


def _as_object(row: "WordSurprisal") -> dict[str, Any]:
    from relmo.models.word_tables import COLUMNS

    return ({} if row.name is None else {"id": row.name}) | {name: getattr(row, name) for name in COLUMNS}


def _summary(totals: "SurprisalTotals") -> dict[str, float]:
    """The sums by name."""
    each = totals.word_bits / max(totals.words, 1)
    return totals._asdict() | {"bits": totals.bits, "bits_per_word": each}


def _sentence(out: Path, totals: "SurprisalTotals") -> str:
    """What was written, in words."""
    share, each = totals.unknown / totals.words, totals.word_bits / totals.words
    return (
        f"{out}: {totals.words:,} words, {share:.2%} of them unknown; {each:.3f} bits a word, {totals.bits:,.1f} bits "
        "with the ends of lines"
    )
