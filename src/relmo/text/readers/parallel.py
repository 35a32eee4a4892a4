"""Sources and targets for sequence-to-sequence models: two parallel files, `train.en,train.de` (Multi30k, Europarl,
WMT); columns with tabs or commas, by default the first two (Tatoeba); JSON lines, in which a list of sources is one
text in pieces and a list of targets several references (SciTLDR)."""

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from relmo.disk.files import is_file
from relmo.errors import CorpusError, SettingError, quote
from relmo.text.corpus import MAX_DIGITS, Errors, numbered_lines, require, require_examples
from relmo.text.readers.tables import csv_fields, get_value, is_csv, is_jsonl, json_rows

SOURCE = ("source", "src", "input")
TARGET = ("target", "tgt", "output", "summary")


class TextToText(NamedTuple):
    """Source text, its possible targets, and whether it is tokenized at whitespace."""

    source: str
    targets: list[str]
    tokenized: bool = False


@require_examples("pair")
def read_parallel(path: str | Path, *, columns: str | None = None, errors: Errors = "strict") -> Iterator[TextToText]:
    """Yield the pairs of a file, or of two files with a comma between. `columns` are two names or numbers from 1."""
    names = None if columns is None else [part.strip() for part in columns.split(",", 1)]
    if names is not None and (len(names) != 2 or not all(names) or "," in names[1]):
        raise SettingError(f"--column takes two columns with a comma between them, such as 1,2, not {quote(columns)}")
    source_path, _, target_path = str(path).partition(",")
    if source_path and target_path and "," not in target_path and not is_file(Path(path)):
        if names is not None:
            raise SettingError(f"{path}: parallel files have no columns; omit --column")
        for lines in zip_longest(numbered_lines(source_path, errors), numbered_lines(target_path, errors)):
            if None in lines:
                longer = source_path if lines[0] else target_path
                raise CorpusError(f"{longer}: has more lines than the other file; line n of one belongs to line n")
            source, target = (_strip(text, place) for text, place in lines)
            yield TextToText(source, [target])
    elif is_jsonl(path):
        keys = (SOURCE, TARGET) if names is None else (names[:1], names[1:])
        for row in json_rows(path, errors):
            texts = []
            for alternatives in keys:
                value: Any = get_value(row, alternatives, "give both keys with --column source,target")
                texts.append(value if isinstance(value, list) else [value])
                if not texts[-1] or not all(isinstance(text, str) for text in texts[-1]):
                    raise CorpusError(f"{row.place}: a text must be a string or a list of strings, not {quote(value)}")
            sources, targets = texts
            yield TextToText(_strip(" ".join(sources), row.place), [_strip(text, row.place) for text in targets])
    else:
        tabs = ((text.split("\t"), place) for text, place in numbered_lines(path, errors, blank=False))
        indices: tuple[int, int] | None = None
        for fields, place in csv_fields(path, errors, ",") if is_csv(path) else tabs:
            if indices is None:
                header = [field.strip() for field in fields]
                is_header = len(header) > 1 and header[0].lower() in SOURCE and header[1].lower() in TARGET
                if names is None:
                    indices = 0, 1
                elif all(n.isascii() and n.isdigit() and 0 < len(n) <= MAX_DIGITS and int(n) for n in names):
                    indices = int(names[0]) - 1, int(names[1]) - 1
                else:
                    for name in names:
                        if name not in header:
                            columns = ", ".join(header[:12])
                            raise CorpusError(f"{place}: there is no column {quote(name)}; the columns are {columns}")
                    indices, is_header = (header.index(names[0]), header.index(names[1])), True
                if is_header:
                    continue
            if len(fields) <= max(indices):
                columns = f"separated by a tab, in columns {indices[0] + 1} and {indices[1] + 1}"
                advice = f"found {quote(' '.join(fields))}; give two parallel files as SOURCE,TARGET"
                raise CorpusError(f"{place}: expected a source and a target {columns}, {advice}")
            yield TextToText(_strip(fields[indices[0]], place), [_strip(fields[indices[1]], place)])


def _strip(text: str, place: str) -> str:
    require(text.strip(), place, "the text is empty; remove the pair")
    return text.strip()
