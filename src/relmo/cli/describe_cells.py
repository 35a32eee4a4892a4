"""`relmo cells`"""

import re
from typing import Any

from relmo.cli.options import Json
from relmo.cli.terminal import print_json, print_table
from relmo.errors import SettingError, quote
from relmo.registry import UNKNOWN_CELL_ADVICE, cell_class, cell_entry, cell_names

HIDDEN, INPUT = 128, 96  # sizes of the cells that are described
PAPER = re.compile(r"\w[^,]*\b(?:19|20)\d\d, ")  # authors and year
EQUATION = re.compile(r"^\w'?\s+= ")


def list_cells(name: str | None = None, *, json: Json = False) -> None:
    """List the recurrent cells: their states, gates, options and papers; or describe one, with its equations.

    Your own cells are among them: those of the files and modules that the environment variable RELMO_PLUGINS names, and
    those of installed packages.

        relmo cells lstm

    Args:
        name: A cell, to print its equations, all quantities of a step and the help of its options.
    """
    if name is not None and name not in cell_names():
        raise SettingError(
            f"Unknown cell {quote(name)}; expected one of {', '.join(cell_names())}{UNKNOWN_CELL_ADVICE}"
        )
    records = [gather_cell(cell) for cell in ([name] if name else cell_names())]
    if json:
        print_json(records[0] if name else records)
    elif name:
        _print_cell(records[0])
    else:
        columns = ["cell", "states", "gates", "over time", "options", "paper"]
        print_table(columns, [_format_row(record) for record in records], left=range(len(columns)))


def gather_cell(name: str) -> dict[str, Any]:
    """Return everything that `relmo cells` prints about a cell."""
    import sys
    from inspect import getdoc

    from relmo.nn.recurrence import make_cell
    from relmo.nn.recurrence.stack import has_scan

    cell, doc = make_cell(name, HIDDEN)(INPUT), getdoc(cell_class(name)) or ""
    module_doc = sys.modules[type(cell).__module__].__doc__ or ""
    is_inherited = "__doc__" not in vars(type(cell)) or not vars(type(cell))["__doc__"]
    lines = [] if is_inherited else [line for line in doc.splitlines() if not EQUATION.match(line)]
    return {
        "name": name,
        "about": "\n".join(lines).replace("\n\n\n", "\n\n").strip(),
        "papers": _find_papers(module_doc),
        "is_parallel": has_scan(cell) and not cell.recurrent_matrices(),
        "states": list(cell.states),
        "gates": cell.gate_names,
        "options": dict(cell_entry(name).options),
        "equations": cell.equations(),
        "quantities": [quantity._asdict() for quantity in cell.quantities()],
    }


def _find_papers(doc: str) -> list[str]:
    """Return the papers in a module's docstring, which start a line or follow a semicolon, and may be wrapped."""
    papers: list[str] = []
    for line in doc.replace(";  ", "\n").splitlines()[1:]:
        if PAPER.match(line):
            papers.append(line)
        elif papers and line:
            papers[-1] += f" {line.strip()}"
        elif papers:
            break
    return papers


def _format_row(record: dict[str, Any]) -> list[str]:
    states, gates = " ".join(record["states"]), " ".join(record["gates"])
    parallel = "parallel" if record["is_parallel"] else "sequential"
    options, paper = _format_options(record["options"]), next(iter(record["papers"]), "")
    return [record["name"], states, gates, parallel, options, paper]


def _format_options(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_format_value(value)}" for name, value in options.items())


def _format_value(value: Any) -> str:
    return f"{value}".lower() if isinstance(value, bool) else "none" if value is None else f"{value}"


def _print_cell(record: dict[str, Any]) -> None:
    title, _, details = record["about"].partition("\n")
    print(f"{record['name']}: {title}" if title else record["name"])
    print("Its steps are computed in parallel over time." if record["is_parallel"] else "Its steps are sequential.")
    carried = set(record["states"])
    print("\nEquations; x is the input, and h' and other states with a prime are those after the step:")
    for quantity, right in record["equations"].items():
        print(f"  {quantity + chr(39) if quantity in carried else quantity:2} = {right}")
    if details:
        print(f"\n{details.strip()}")
    if record["options"]:
        print(f"\nOptions and defaults: {_format_options(record['options'])}")
    for paper in record["papers"]:
        print(f"\nPaper: {paper}" if paper is record["papers"][0] else f"       {paper}")
    print()
    columns = ["quantity", "role", "description", f"shape (H = {HIDDEN}, I = {INPUT})", "range", "initial"]
    symbols = {HIDDEN: "H", INPUT: "I"}
    rows = []
    for quantity in record["quantities"]:
        shape = " × ".join(symbols.get(size, str(size)) for size in quantity["shape"])
        low, high = (f"{bound:g}".replace("inf", "∞") for bound in (quantity["low"], quantity["high"]))
        initial = "" if quantity["initial"] is None else f"{quantity['initial']}"
        rows.append([quantity["name"], quantity["role"], quantity["description"], shape, f"{low} … {high}", initial])
    print_table(columns, rows, left=range(len(columns)))
