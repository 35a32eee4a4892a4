"""`relmo analyse truncation MODEL…`"""

from pathlib import Path
from typing import Literal

from relmo.cli.output import Overwrite, check_plot, say_wrote
from relmo.cli.sources import Tokenizer
from relmo.errors import SettingError
from relmo.settings.arguments import PathName


def truncation(
    *models: PathName,
    text: PathName | None = None,
    lengths: str | None = None,
    positions: int = 1000,
    direction: Literal["forward", "backward"] = "forward",
    plot: Path | None = None,
    overwrite: Overwrite = False,
    seed: int = 0,
    tokenizer: Tokenizer = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """How much of the past models use: their loss when they are given only the last k symbols, by k.

    For example:

        relmo analyse truncation models/lstm models/elman --text book.txt --plot past.png

    Parameters
    ----------
    models
        Folders of language models of any kind, n-gram models too, bidirectional or not.
    text
        A file of text to measure on; by default the text that ships with relmo. Its first 200,000 characters
        are taken. For a bidirectional model each line is a sentence.
    lengths
        How many symbols to give, with commas between, such as 1,2,4,8.
    positions
        At how many places of the text to measure.
    direction
        Which direction of a bidirectional model.
    plot
        Draw the curves to this .png or .svg file.
    seed
        The seed that draws the places.
    device
        Where to compute; auto takes a GPU if there is one.
    json
        Print one JSON object.
    quiet
        Show no progress.
    """
    from relmo.analysis.memory import truncation as library
    from relmo.cli.analyse.gradients import numbers, text_or_bundled
    from relmo.cli.terminal import print_json, print_tables, share_bar
    from relmo.loading import FORWARDS, load

    if not models:
        raise SettingError("no model to look at: relmo analyse truncation MODEL…")
    check_plot(plot, overwrite=overwrite)
    chosen = numbers(lengths, "--lengths") if lengths else [*map(float, library.LENGTHS)]
    if any(number != int(number) for number in chosen):
        raise SettingError(f"--lengths takes whole numbers with commas between them, not {lengths}")
    given = text_or_bundled(text)
    curves = []
    for source in models:
        with share_bar(source, quiet=quiet) as progress:
            curves.append(
                library.truncation(
                    load(source, kinds=FORWARDS, device=device).splitting(tokenizer),
                    given,
                    lengths=[int(number) for number in chosen],
                    positions=positions,
                    direction=direction,
                    seed=seed,
                    name=Path(source).name,
                    progress=progress,
                )
            )
    if plot is not None:
        library.draw_truncation(curves, plot)
        say_wrote(plot, quiet=quiet)
    if json:
        print_json({"models": [curve.as_dict() for curve in curves]})
    else:
        print_tables(library.truncation_table(curves))
