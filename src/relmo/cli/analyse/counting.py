"""`relmo analyse counting LANGUAGE`"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from relmo.cli.analyse.base import OUTPUT, Output
from relmo.errors import SettingError
from relmo.settings.cells import CELLS


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Training and testing of networks."""

    limit: int = 50
    """The largest n in training."""
    tested: int | None = None
    """The largest n in testing; by default four times --limit."""
    hidden: int = 10
    """The hidden size."""
    steps: int = 3000
    """The number of training steps of each network."""
    seeds: int = 3
    """The maximum number of networks of each cell. Stops at the first without a mistake in validation."""
    seed: int = 0
    """The first random seed."""
    lr: float = 0.03
    """The learning rate."""
    threshold: float = 0.01
    """The minimum probability of a symbol in an accepted word."""


def counting(
    language: str = "anbn",
    *,
    cells: str = ",".join(sorted(CELLS)),
    each: bool = False,
    save: Path | None = None,
    training: Annotated[TrainingOptions, Parameter(name="*", group="Training")] = TrainingOptions(),
    output: Output = OUTPUT,
) -> None:
    """Train small networks on the words of a formal language, and test whether they can count on longer words.

    A network accepts a word if every symbol, and the end, is probable enough. The table shows the n for which right
    words are accepted, the first failure, the n from which wrong words are accepted, and the unit that counts. Each
    network is the best of its seeds, selected on words at most a quarter longer than those in training.

        relmo analyse counting anbn --plot counting.png

        relmo analyse counting dyck-2 --cells lstm --limit 10 --hidden 32

    Parameters
    ----------
    language
        anbn (n a's, then n b's), anbncn, or dyck-1 to dyck-4: balanced brackets of 1 to 4 kinds, nested n deep.
    cells
        Recurrent cells, separated by commas.
    each
        Train and test the network of every seed, not only the best.
    save
        Save the networks for other analyses in this folder, as LANGUAGE-CELL (with --each LANGUAGE-CELL-SEED).
    """
    from relmo.analysis.memory import counting as library
    from relmo.analysis.memory.counting import counting_table, draw_counting
    from relmo.analysis.memory.counting_training import CountingOptions
    from relmo.analysis.memory.languages import get_language
    from relmo.disk.outputs import check_replaceable, new_folder
    from relmo.store.folder import MODEL_FILES

    output.check()
    get_language(language)
    names = [cell.strip() for cell in cells.split(",") if cell.strip()]
    if not names:
        raise SettingError(f"--cells takes cells separated by commas, such as {','.join(sorted(CELLS))}")
    settings = dict(vars(training))
    options = CountingOptions(first_seed=settings.pop("seed"), **settings)
    for cell in names:
        library.check(cell, options)
    replacing: dict[str, Any] = {"overwrite": output.overwrite, "ours": MODEL_FILES}

    def make_path(folder: Path, cell: str, seed: int) -> Path:
        return folder / (f"{language}-{cell}-{seed}" if each else f"{language}-{cell}")

    if save is not None:
        for cell, seed in product(names, range(training.seed, training.seed + training.seeds)):
            check_replaceable(make_path(save, cell, seed), **replacing)
    networks = []
    for cell in names:
        with output.progress(f"{language}, {cell}") as progress:
            if each:
                networks += library.counting_each(language, cell, options, progress=progress)
            else:
                networks.append(library.counting(language, cell, options, progress=progress))
    if save is not None:
        for network in networks:
            with new_folder(make_path(save, network.cell, network.tried[0].seed), **replacing) as folder:
                network.model.save_pretrained(folder, results={"balanced": network.balanced})
    output.draw(lambda path: draw_counting(networks, path))
    output.print({"networks": [network.as_dict() for network in networks]}, [counting_table(networks)])
