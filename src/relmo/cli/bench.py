"""`relmo bench`"""

from statistics import median
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from relmo.cli.terminal import print_json, print_table, status_line
from relmo.settings.bench import BenchOptions

if TYPE_CHECKING:
    from relmo.bench.table import BenchReport, BenchRow


def bench(
    *,
    options: Annotated[BenchOptions, Parameter(name="*", negative="")] = BenchOptions(),  # noqa: B008
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Print how fast this machine is: a table of embedding and training with ELMo.

    The same model in other forms is timed beside it. The table also says how fast a sequence-to-sequence network writes
    and trains, and how long the explorer's page waits.

        relmo bench --quick

        relmo bench --what embed --geometry original --dtype float32,int8 --text corpus.txt --tokens 25000

    Everything is timed in rounds, one after the other, and the figures are medians. docs/benchmarks.md explains them.

    Parameters
    ----------
    json
        Print one JSON object: machine, versions, threads, date, text, gemm, warnings and rows.
    quiet
        Show no progress.
    """
    from relmo.bench.table import Bench

    with status_line(quiet=quiet) as watch:
        report = Bench(options, watch).run()
    if json:
        print_json(report.json())
    else:
        _show(report)


def _show(report: "BenchReport") -> None:
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
        rate = {"explore": "ms", "decode": "sentences/s"}.get(section.what, "tokens/s")
        columns = ["", rate, "x", "of floor", "agrees"]
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
