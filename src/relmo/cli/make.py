"""`relmo make NAME`"""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from relmo.cli.options import Overwrite
from relmo.cli.terminal import print_json
from relmo.disk.outputs import atomic, refuse_existing
from relmo.text.makers import MakerOptions, make_pairs

FILES = {"train": "train.tsv", "held_out": "held-out.tsv", "longer": "longer.tsv"}


def make(
    name: Literal["arithmetic", "copy", "reverse", "dates"],
    *,
    out: Path,
    options: Annotated[MakerOptions, Parameter(name="*", group="Pairs")] = MakerOptions(),  # noqa: B008
    overwrite: Overwrite = False,
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Generate pairs of texts for `relmo train seq2seq`: sums, copies, reversals, dates.

    For example:

        relmo make arithmetic --size 4 --operators +- --out sums

        relmo make reverse --size 10 --out reversals

        relmo train seq2seq sums/train.tsv --valid sums/held-out.tsv --preset addition --out models/sums

    It writes tables with two columns, source and target: train.tsv; held-out.tsv, other pairs of the same lengths; and
    longer.tsv, pairs that are longer than those of train.tsv (for dates, days before 1900).

    Parameters
    ----------
    name
        arithmetic, copy, reverse or dates.
    out
        The output folder.
    json
        Print one JSON object: the files and their numbers of pairs.
    quiet
        Print nothing.
    """
    for file in FILES.values():
        refuse_existing(out / file, overwrite=overwrite)
    tables = make_pairs(name, options)._asdict()
    out.mkdir(parents=True, exist_ok=True)
    for table, pairs in tables.items():
        with atomic(out / FILES[table]) as temporary:
            rows = (f"{source}\t{target}\n" for source, target in [("source", "target"), *pairs])
            temporary.write_text("".join(rows), encoding="utf-8")
    counts = {str(out / FILES[table]): len(pairs) for table, pairs in tables.items()}
    if json:
        print_json({"files": counts})
    elif not quiet:
        for path, count in counts.items():
            print(f"{path}: {count:,} pairs")
