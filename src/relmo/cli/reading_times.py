"""`relmo reproduce reading-times`"""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from relmo.cli.output import Overwrite, check_plot, say_wrote
from relmo.cli.terminal import print_json, print_reproduction, sayer


def reading_times(
    *,
    model: Annotated[list[str] | None, Parameter(negative="")] = None,
    train: bool = True,
    keep: Path | None = None,
    data: Path | None = None,
    plot: Path | None = None,
    overwrite: Overwrite = False,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Does surprisal explain how long people read a word? The gain in log-likelihood of a linear model of reading times
    when surprisal is added to length, frequency and place: of a 5-gram, an LSTM, the model that ships, and GPT-3.

    The times are those of Natural Stories (Futrell et al. 2021): every natural_stories*.tsv in tasks/reading_times of
    the data folder. The 5-gram and the LSTM are trained first, on 20 MB of text, which takes about eight minutes of one
    core.

        relmo reproduce reading-times --keep out/reading-times --plot out/reading-times.png

        relmo reproduce reading-times --no-train --model models/lstm --model models/5-gram

    Parameters
    ----------
    model
        The folder of a language model of any kind; may be given several times. By default the model that ships with
        relmo.
    train
        Train the 5-gram and the LSTM. Otherwise only the models that are given are compared with GPT-3.
    keep
        Keep the 5-gram and the LSTM in this folder. If they are there already, they are not trained again.
    data
        The folder that holds the data; by default the one that RELMO_DATA names, else data/ here.
    plot
        Draw the gains with their intervals: a .png or .svg file.
    seed
        The seed of the untrained network's weights.
    device
        Where to compute; auto takes a GPU if there is one.
    json
        Print one JSON object with all figures, and the differences of all pairs of models.
    quiet
        Show no progress.
    """
    check_plot(plot, overwrite=overwrite)

    from relmo.loading import FORWARDS, load
    from relmo.reproduce.data import data_folder
    from relmo.reproduce.reading_times import draw, read_data, reproduce, train_baselines

    say = sayer(quiet=quiet)
    stories = read_data(data_folder(data))
    loaded = {name: load(name, kinds=FORWARDS, device=device) for name in model or ["small"]}
    trained = train_baselines(data_folder(data), keep, device=device, say=say) if train else {}
    table = reproduce(stories, trained | loaded, seed=seed, say=say)
    if plot is not None:
        draw(plot, table.rows)
        say_wrote(plot, quiet=quiet)
    if json:
        print_json({"models": [*trained, *loaded], "reproductions": [table.summary()]})
        return
    print_reproduction(table)
