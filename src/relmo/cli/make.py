"""`relmo make NAME`"""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from relmo.cli.output import Overwrite
from relmo.cli.terminal import print_json
from relmo.disk.outputs import atomic, refuse_existing
from relmo.text.makers import MadePairs, MakerOptions, make_pairs

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
    """Make pairs of texts to learn from: sums, copies, reversals, dates. `relmo train seq2seq` learns them.

    For example:

        relmo make arithmetic --size 4 --operators +- --out sums

        relmo make reverse --size 10 --out reversals

        relmo train seq2seq sums/train.tsv --valid sums/held-out.tsv --preset addition --out models/sums

    It writes tables with two columns, source and target. train.tsv is to learn from. held-out.tsv has other pairs of
    the same lengths. longer.tsv has pairs that are longer than those of train.tsv; for dates, days before 1900.

    Parameters
    ----------
    name
        arithmetic, copy, reverse or dates.
    out
        The folder to write the tables to.
    json
        Print one JSON object: the files and how many pairs they have.
    quiet
        Print nothing.
    """
    for file in FILES.values():
        refuse_existing(out / file, overwrite=overwrite)
    made = make_pairs(name, options)
    out.mkdir(parents=True, exist_ok=True)
    counts = _write(made, out)
    if json:
        print_json({"files": counts})
    elif not quiet:
        for file, count in counts.items():
            print(f"{file}: {count:,} pairs")


def _write(made: MadePairs, out: Path) -> dict[str, int]:
    """The three tables. -> how many pairs each has"""
    for name, pairs in made._asdict().items():
        with atomic(out / FILES[name]) as temporary:
            rows = (f"{source}\t{target}\n" for source, target in [("source", "target"), *pairs])
            temporary.write_text("".join(rows), encoding="utf-8")
    return {str(out / FILES[name]): len(pairs) for name, pairs in made._asdict().items()}
