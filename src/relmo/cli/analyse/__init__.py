"""`relmo analyse NAME …`: the explorer's analyses on the command line."""

from cyclopts import App

from relmo.cli.analyse.cells import cells
from relmo.cli.analyse.compare import compare
from relmo.cli.analyse.counting import counting
from relmo.cli.analyse.meaning import meaning
from relmo.cli.analyse.memory import connectivity, gradients, source_gradients, truncation
from relmo.cli.analyse.syntax import agreement, number_units
from relmo.cli.analyse.trace import trace

analyse = App(name="analyse", help="Analyse a model: its states, gates and units.")
for command in (
    *(trace, cells, gradients, connectivity, source_gradients, truncation, counting),
    *(agreement, number_units, compare, meaning),
):
    analyse.command(command)
