"""Command line of the speed tables: `python -m benchmarks`."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Annotated

from cyclopts import App, Parameter
from rich.text import Text

from benchmarks.table import Bench, BenchOptions, BenchReport, BenchRow, BenchSection
from relmo.cli import main as run_command
from relmo.cli.mistakes import check_numbers
from relmo.cli.terminal import print_json, print_table
from relmo.runs.progress import PLAIN_INTERVAL, make_console

COLUMNS = ("x", "of floor", "agrees")
RATE_COLUMNS = {"explore": "ms", "decode": "sentences/s"}

app = App(
    name="python -m benchmarks",
    help_format="markdown",
    suppress_keyboard_interrupt=False,
    version_flags=(),
    config=check_numbers,
)


@app.default
def bench(
    *,
    options: Annotated[BenchOptions, Parameter(name="*", negative="")] = BenchOptions(),  # noqa: B008
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Print the speed of this machine: embedding and training with ELMo.

    The same model is timed in other implementations, too. Further tables have decoding and training of a
    sequence-to-sequence network, and response times of the explorer.

        python -m benchmarks --quick

        python -m benchmarks --what embed --geometry original --dtype float32,int8 --text corpus.txt --tokens 25000

    All cases are timed in interleaved rounds; the figures are medians. docs/benchmarks.md explains them.

    Parameters
    ----------
    json
        Print one JSON object: machine, versions, threads, date, text, gemm, warnings and rows.
    quiet
        Show no progress.
    """
    with status_line(quiet=quiet) as on_message:
        report = Bench(options, on_message).run()
    if json:
        print_json(report.json())
    else:
        print_report(report)


@contextmanager
def status_line(*, quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a message: in place on a terminal, otherwise as an occasional plain line."""
    console = make_console(quiet=quiet)
    if console.is_terminal and not quiet:
        with console.status("") as status:
            yield lambda message: status.update(Text(message))
        return
    last_time = time.monotonic()

    def show_message(message: str) -> None:
        nonlocal last_time
        if time.monotonic() - last_time > PLAIN_INTERVAL:
            console.print(message, soft_wrap=True)
            last_time = time.monotonic()

    yield show_message


def print_report(report: BenchReport) -> None:
    """Print the machine, one table per section, and warnings."""
    machine = report.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    kernels = "" if machine["kernels"] or machine["device"] == "cuda" else "; no compiled kernels"
    threads = "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    print(f"{machine['machine']}, {threads}, {machine['instructions']}{kernels}; {machine['date']}")
    print(f"{versions}; text: {report.text['name']}")
    for precision, rates in report.gemm.items():
        fastest, peak = max(rates.items(), key=lambda item: item[1])
        thin, thin_rate = next(iter(rates.items()))
        print(f"matrix products in {precision}: {peak / 1e9:,.0f} GFLOP/s ({fastest}); {thin_rate / 1e9:,.0f} ({thin})")
    for section in report.sections:
        print(f"\n{section.title}\nx: speed relative to {section.baseline}")
        rows = [_format_row(section, row) for row in section.rows]
        columns = ["", RATE_COLUMNS.get(section.what, "tokens/s"), *COLUMNS]
        used = [i for i in range(len(columns)) if i < 3 or any(row[i] for row in rows)]
        print_table([columns[i] for i in used], [[row[i] for i in used] for row in rows])
    for warning in report.warnings:
        print(f"\nwarning: {warning}")


def _format_row(section: BenchSection, row: BenchRow) -> list[str]:
    rate = f"{1000 * median(row.seconds):,.1f}" if section.what == "explore" else f"{row.tokens_per_second:,.0f}"
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    of_floor = "" if row.of_floor is None else f"{row.of_floor:.0%}"
    agrees = ""
    if row.max_difference is not None and row.mean_cosine is not None:
        is_exact = row.precision == "float32"
        agrees = f"within {row.max_difference:.0e}" if is_exact else f"cosine {row.mean_cosine:.5f}"
    return [row.name, rate, ratio, of_floor, agrees]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exit with 0, 2 (usage or data error) or 130 (Ctrl-C)."""
    run_command(arguments, app)


if __name__ == "__main__":
    main()
