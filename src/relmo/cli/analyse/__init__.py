"""`relmo analyse NAME …`: what the explorer shows, without a browser. A file for each analysis."""

from cyclopts import App

from relmo.cli.analyse.agreement import agreement
from relmo.cli.analyse.cells import cells
from relmo.cli.analyse.compare import compare
from relmo.cli.analyse.counting import counting
from relmo.cli.analyse.gradients import connectivity, gradients
from relmo.cli.analyse.meaning import meaning
from relmo.cli.analyse.number_units import number_units
from relmo.cli.analyse.source_gradients import source_gradients
from relmo.cli.analyse.trace import trace
from relmo.cli.analyse.truncation import truncation

analyse = App(name="analyse", help="Look inside a model: its states and gates, and what its units stand for.")
analyse.command(trace)
analyse.command(cells)
analyse.command(gradients)
analyse.command(connectivity)
analyse.command(source_gradients)
analyse.command(truncation)
analyse.command(counting)
analyse.command(agreement)
analyse.command(number_units)
analyse.command(compare)
analyse.command(meaning)
