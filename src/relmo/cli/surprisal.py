"""`relmo surprisal MODEL [FILE]`"""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from relmo.cli.analyse.base import MODELS, Models
from relmo.cli.options import Overwrite, SourceOptions
from relmo.cli.terminal import count_bar, print_json, print_message
from relmo.disk.outputs import refuse_existing
from relmo.errors import CorpusError
from relmo.settings.arguments import PathName
from relmo.settings.options import SurprisalOptions

if TYPE_CHECKING:
    from relmo.models.surprisal import WordSurprisal

MAX_UNKNOWN_SHARE = 0.2  # above this the language of the text is questioned


def surprisal(
    model: PathName,
    file: PathName | None = None,
    *,
    out: Path | None = None,
    options: Annotated[SurprisalOptions, Parameter(name="*")] = SurprisalOptions(),  # noqa: B008
    source: Annotated[SourceOptions, Parameter(name="*")] = SourceOptions(),  # noqa: B008
    overwrite: Overwrite = False,
    loading: Models = MODELS,
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Compute the surprisal of each word of a text under a language model: a table with one row per word.

    The columns are line, position, word, start and end (character offsets in the line), surprisal in bits, entropy in
    bits before the word, and unknown (1 for words outside the vocabulary). Lines and positions count from 1.

        echo "The old man the boat." | relmo surprisal small

        relmo surprisal models/mine story.txt --out story.tsv

        relmo surprisal small stimuli.csv --column sentence --context sentence --out stimuli.parquet

        echo "The horse raced past the barn fell." | relmo surprisal small

    Parameters
    ----------
    model
        The folder of a language model of any kind, or small, a bundled model.
    file
        Text (.gz, .xz, .zst too), one sentence per line; .conllu; or a table, .csv or .tsv. By default standard input.
    out
        The output file: .tsv, .csv or .parquet. By default the table is printed, separated by tabs.
    json
        Print one JSON object: words, unknown, word_bits, end_bits, bits, bits_per_word, and out or the rows.
    quiet
        Show no progress.
    """
    from relmo.models.word_tables import COLUMNS, check_table, table_lines, write_table
    from relmo.text.corpus import STDIN
    from relmo.text.sources import read_texts

    if out is not None:
        check_table(out)
        refuse_existing(out, overwrite=overwrite)
    loaded = loading.load(model)
    path = STDIN if file is None else file
    texts = read_texts(path, **source.to_keywords())
    record: dict[str, Any] = {}
    with count_bar("words", quiet=quiet or out is None) as progress:
        rows = _CountedRows(loaded.surprisal_rows(texts, options), path, ends=options.ends, progress=progress)
        if out is not None:
            write_table(out, iter(rows))
            record["out"] = str(out)
        elif json:
            record["rows"] = []
            for row in rows:
                label = {} if row.name is None else {"id": row.name}
                record["rows"].append(label | {name: getattr(row, name) for name in COLUMNS})
        else:
            csv.writer(sys.stdout, delimiter="\t", lineterminator="\n").writerows(table_lines(iter(rows)))
    totals = rows.totals
    unknown_share, bits_per_word = totals.unknown / totals.words, totals.word_bits / totals.words
    if unknown_share > MAX_UNKNOWN_SHARE:
        print_message(f"{unknown_share:.0%} of the words are unknown to this model. Is the text in its language?")
    if json:
        print_json({"model": model} | totals._asdict() | {"bits": totals.bits, "bits_per_word": bits_per_word} | record)
    elif out is not None and not quiet:
        print(
            f"{out}: {totals.words:,} words, {unknown_share:.2%} unknown; {bits_per_word:.3f} bits per word, "
            f"{totals.bits:,.1f} bits including line ends"
        )


class _CountedRows:
    """Rows of words, and of line ends with `ends`; `totals` sums over all rows so far."""

    def __init__(self, rows: "Iterator[WordSurprisal]", source: str, *, ends: bool, progress: Any):
        from relmo.models.word_tables import SurprisalTotals

        self.rows, self.source, self.ends, self.progress = rows, source, ends, progress
        self.totals = SurprisalTotals()

    def __iter__(self) -> "Iterator[WordSurprisal]":
        for row in self.rows:
            self.totals = self.totals.add(row)
            self.progress(self.totals.words)
            if self.ends or not row.is_end:
                yield row
        if not self.totals.words:  # raised before an empty table is written
            raise CorpusError(f"{self.source}: the text has no words")
