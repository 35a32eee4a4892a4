"""`relmo analyse counting LANGUAGE`"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cyclopts import Parameter

from relmo.cli.output import Overwrite, check_plot, say_wrote
from relmo.errors import SettingError
from relmo.settings.cells import CELLS

if TYPE_CHECKING:
    from relmo.analysis.memory.counting_report import Counting


@dataclass(frozen=True, kw_only=True)
class Training:
    """How networks are trained and tested."""

    limit: int = 50
    """The largest n that is learned from."""
    tested: int | None = None
    """The largest n that is tested; by default four times the limit."""
    hidden: int = 10
    """How many units a network has."""
    steps: int = 3000
    """How many steps each network is trained."""
    seeds: int = 3
    """How many networks of each cell to try at most. Trying ends with the first that makes no mistake in validation."""
    seed: int = 0
    """The first seed."""
    lr: float = 0.03
    """The learning rate."""
    threshold: float = 0.01
    """The least probability of a symbol in an accepted word."""


def counting(
    language: str = "anbn",
    *,
    cells: str = ",".join(sorted(CELLS)),
    each: bool = False,
    save: Path | None = None,
    plot: Path | None = None,
    overwrite: Overwrite = False,
    json: bool = False,
    quiet: bool = False,
    training: Annotated[Training, Parameter(name="*", group="Training")] = Training(),
) -> None:
    """Can they count? Small networks learn a formal language from its words, and are tested on longer ones.

    A network accepts a word if every symbol of it, and its end, is probable enough. The table says for which n right
    words are accepted, which n is the first failure, from which n on wrong words are accepted, and which unit counts.
    Each network is the best of its seeds, chosen by words at most a quarter longer than those it learned from.

        relmo analyse counting anbn --plot counting.png

        relmo analyse counting dyck-2 --cells lstm --limit 10 --hidden 32

    Parameters
    ----------
    language
        anbn (n a's, then n b's), anbncn, or dyck-1 to dyck-4: balanced brackets of so many kinds, n deep.
    cells
        Which networks, with commas between.
    each
        Train and judge the network of every seed, not only the best.
    save
        Save the networks here for other analyses, in folders LANGUAGE-CELL (with --each LANGUAGE-CELL-SEED).
    plot
        Draw what is accepted, and the counters, to this .png or .svg file.
    json
        Print one JSON object.
    quiet
        Show no progress.
    """
    from relmo.analysis.memory import counting as library
    from relmo.analysis.memory.counting_report import counting_table, draw_counting
    from relmo.analysis.memory.counting_training import CountingOptions
    from relmo.analysis.memory.languages import language_of
    from relmo.cli.terminal import print_json, print_tables, share_bar

    check_plot(plot, overwrite=overwrite)
    language_of(language)
    chosen = [cell.strip() for cell in cells.split(",") if cell.strip()]
    if not chosen:
        raise SettingError(f"--cells takes cells with commas between them, such as {','.join(sorted(CELLS))}")
    given = vars(training)
    options = CountingOptions(
        first_seed=training.seed, **{name: value for name, value in given.items() if name != "seed"}
    )
    for cell in chosen:
        library.check(cell, options)
    folders = Folders(save, language, each, overwrite)
    folders.check(chosen, range(training.seed, training.seed + training.seeds))
    results = []
    for cell in chosen:
        with share_bar(f"{language}, {cell}", quiet=quiet) as progress:
            if each:
                results += library.counting_each(language, cell, options, progress=progress)
            else:
                results.append(library.counting(language, cell, options, progress=progress))
    for one in results:
        folders.save(one)
    if plot is not None:
        draw_counting(results, plot)
        say_wrote(plot, quiet=quiet)
    if json:
        print_json({"networks": [one.as_dict() for one in results]})
    else:
        print_tables(counting_table(results))


class Folders(NamedTuple):
    """Where the networks are saved, if anywhere, each in a folder of its own."""

    save_in: Path | None
    language: str
    each: bool
    overwrite: bool

    def place(self, cell: str, seed: int) -> Path:
        """The folder of one network."""
        assert self.save_in is not None
        return self.save_in / (f"{self.language}-{cell}-{seed}" if self.each else f"{self.language}-{cell}")

    def check(self, cells: Sequence[str], seeds: Iterable[int]) -> None:
        """Raises where one is there already, before anything is trained."""
        from relmo.disk.outputs import check_replaceable
        from relmo.store.folder import OURS

        if self.save_in is not None:
            for cell, seed in product(cells, seeds):
                check_replaceable(self.place(cell, seed), overwrite=self.overwrite, ours=OURS)

    def save(self, counted: "Counting") -> None:
        """Writes one network."""
        from relmo.disk.outputs import new_folder
        from relmo.store.folder import OURS

        if self.save_in is not None:
            folder = self.place(counted.cell, counted.tried[0].seed)
            with new_folder(folder, overwrite=self.overwrite, ours=OURS) as inside:
                counted.model.save_pretrained(inside, results={"balanced": counted.balanced})
