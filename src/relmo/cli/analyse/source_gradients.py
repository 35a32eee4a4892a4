"""`relmo analyse source-gradients [MODEL…]`"""

from pathlib import Path
from typing import Any, Literal

from relmo.cli.analyse.gradients import numbers
from relmo.cli.output import Overwrite, check_plot, say_wrote
from relmo.errors import SettingError
from relmo.settings.arguments import PathName
from relmo.settings.cells import CellName

LENGTHS = "5,10,20,40,80"


def source_gradients(
    *models: PathName,
    pairs: PathName | None = None,
    most: int = 1000,
    unit: Literal["all", "first", "last"] = "all",
    lengths: str = LENGTHS,
    cell: CellName = "lstm",
    hidden: int = 64,
    plot: Path | None = None,
    overwrite: Overwrite = False,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """What attention is for: the gradient that reaches the first word of the source, and the steps that it takes, by
    the source's length.

    It measures sequence-to-sequence models side by side, on pairs of texts. Without models, it measures three networks
    before training: from one vector, from one vector at every step, and with attention.

        relmo analyse source-gradients --plot first-word.png

        relmo analyse source-gradients models/attention models/fixed --pairs val.en,val.de

    Parameters
    ----------
    models
        Folders of sequence-to-sequence models.
    pairs
        With models: a file of pairs, or two parallel files with a comma between them.
    most
        With models: how many of the pairs to measure on.
    unit
        The loss of which unit of the target: of all together, of the first, or of the last.
    lengths
        Without models: the lengths of sources, with commas between them.
    cell
        Without models: the recurrent cell.
    hidden
        Without models: how many units the networks have.
    plot
        Draw the curves to this .png or .svg file.
    seed
        Without models: the seed of the weights and vectors.
    device
        Where to compute; auto takes a GPU if there is one.
    json
        Print one JSON object.
    quiet
        Show no progress.
    """
    check_plot(plot, overwrite=overwrite)
    if bool(models) != (pairs is not None):
        raise SettingError("models are measured on pairs: give both, or neither for networks before training")
    if most < 1 or hidden < 1:
        raise SettingError("--most and --hidden must be 1 or more")
    sizes = [int(number) for number in numbers(lengths, "--lengths")]
    from relmo.analysis.memory import source_gradients as library
    from relmo.cli.terminal import print_json, print_tables, share_bar
    from relmo.loading import load

    found = []
    if pairs is not None:
        with share_bar("source gradients", quiet=quiet) as progress:
            for source in models:
                model: Any = load(source, kinds="seq2seq", device=device)
                name = Path(source).name
                found.append(library.source_gradients(model, pairs, unit=unit, most=most, name=name, progress=progress))
    else:
        found = library.fresh_beside(lengths=sizes, cell=cell, hidden=hidden, unit=unit, seed=seed)
    if plot is not None:
        library.draw_source_gradients(found, plot)
        say_wrote(plot, quiet=quiet)
    if json:
        print_json({"networks": [each.as_dict() for each in found]})
    else:
        print_tables(library.source_table(found))
