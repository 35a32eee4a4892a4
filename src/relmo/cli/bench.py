"""`relmo bench`"""

from statistics import median
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from relmo.cli.terminal import print_json, print_table, status_line

if TYPE_CHECKING:
    from relmo.bench.table import BenchReport, BenchRow


def bench(
    *,
    what: Literal["embed", "train", "explore", "all"] = "all",
    geometry: str | None = None,
    dtype: str | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    threads: int | None = None,
    text: str | None = None,
    tokens: int | None = None,
    rounds: int | None = None,
    quick: Annotated[bool, Parameter(negative="")] = False,
    json: bool = False,
    quiet: bool = False,
) -> None:
    """The speed table of this machine: how fast a biLM (ELMo) embeds and trains, against the same model in other forms;
    and how long the explorer's page waits.

        relmo bench --quick

        relmo bench --what embed --geometry original --dtype float32,int8 --text corpus.txt --tokens 25000

    Everything is timed in rounds, one after the other; the figures are medians. docs/benchmarks.md says how to read it.

    Parameters
    ----------
    what
        Embedding, training, the explorer's answers, or all of it.
    geometry
        The models, with commas between them: tiny, small, medium, original. small,original where not given; with
        --quick small.
    dtype
        The precisions, with commas between them: float32, bfloat16, int8 (embedding on a CPU). All where not given; on
        a GPU bfloat16.
    device
        Where to compute; auto takes a GPU where there is one.
    threads
        CPU threads; as torch chooses where not given.
    text
        What to read (plain, .gz, .xz, .zst), a sentence a line, or .conllu; the bundled text where not given.
    tokens
        How many tokens of it to embed; by default so many that all takes some minutes.
    rounds
        How often everything is timed; 3 where not given, with --quick 2.
    quick
        Less of everything: the small model, a short text, two rounds.
    json
        Print one JSON object: machine, versions, threads, date, text, gemm, warnings and rows.
    quiet
        Show no progress.
    """
    from relmo.bench.table import Bench, BenchOptions

    options = BenchOptions(
        what=what, geometry=geometry, dtype=dtype, device=device, threads=threads, text=text, tokens=tokens,
        rounds=rounds, quick=quick,
    )  # fmt: skip
    with status_line(quiet=quiet) as watch:
        report = Bench(options, watch).run()
    if json:
        print_json(report.json())
    else:
        _show(report)


def _show(report: "BenchReport") -> None:
    """The tables, for people."""
    machine = report.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    kernels = "" if machine["kernels"] or machine["device"] == "cuda" else "; no compiled kernels"
    threads = "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    print(f"{machine['machine']}, {threads}, {machine['instructions']}{kernels}; {machine['date']}")
    print(f"{versions}; text: {report.text['name']}")
    for precision, rates in report.gemm.items():
        shape, fastest = max(rates.items(), key=lambda item: item[1])
        thin = next(iter(rates.items()))
        print(
            f"matrix products in {precision}: {fastest / 1e9:,.0f} GFLOP/s ({shape}); {thin[1] / 1e9:,.0f} ({thin[0]})"
        )
    for section in report.sections:
        print(f"\n{section.title}\nx: times the speed of {section.baseline}")
        columns = ["", "ms" if section.what == "explore" else "tokens/s", "x", "of floor", "agrees"]
        shown = [
            [
                row.name,
                f"{1000 * median(row.seconds):,.1f}" if section.what == "explore" else f"{row.tokens_per_second:,.0f}",
                _number(row.ratio, "{:.2f}"),
                _number(row.of_floor, "{:.0%}"),
                _agrees(row),
            ]
            for row in section.rows
        ]
        used = [i for i in range(len(columns)) if i < 3 or any(row[i] for row in shown)]
        print_table([columns[i] for i in used], [[row[i] for i in used] for row in shown])
    for warning in report.warnings:
        print(f"\nwarning: {warning}")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _agrees(row: "BenchRow") -> str:
    """How far a row's vectors are from the definition's: float32 by the largest difference, others by the cosine."""
    if row.max_difference is None or row.mean_cosine is None:
        return ""
    return f"within {row.max_difference:.0e}" if row.precision == "float32" else f"cosine {row.mean_cosine:.5f}"
