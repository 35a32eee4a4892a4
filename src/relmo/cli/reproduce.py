"""`relmo reproduce NAME…`"""

from pathlib import Path
from typing import Literal

from cyclopts import App

from relmo.cli.elmo_table import elmo_table
from relmo.cli.reading_times import reading_times
from relmo.cli.terminal import print_json, print_reproduction, sayer, warnings_said
from relmo.settings.arguments import PathName

reproduce = App(name="reproduce")
reproduce.command(elmo_table, name="elmo-table")
reproduce.command(reading_times, name="reading-times")


@reproduce.default
def published(
    *names: str,
    model: PathName | None = None,
    vectors: PathName | None = None,
    data: Path | None = None,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Make published tables and figures again for a model. Without a name, list the tables there are.

    The model stands beside its controls: its own layer without context, static vectors, and the same network untrained.

        relmo reproduce pos neighbours

        relmo reproduce perplexity --model models/mine --data /data/relmo --json

    Parameters
    ----------
    names
        What to reproduce, one after the other.
    model
        The folder of a bidirectional model, or original ELMo files; by default the model that ships with relmo.
    vectors
        The folder of static word vectors to compare with; by default those that ship with relmo.
    data
        The folder that holds the data; by default the one that RELMO_DATA names, else data/ here.
    seed
        The seed of the untrained network's weights.
    device
        Where to compute; auto takes a GPU if there is one.
    json
        Print one JSON object with all figures.
    quiet
        Show no progress.
    """
    from relmo.reproduce import REPRODUCTIONS, TRAINED, check_name

    if not names:
        _list_names(REPRODUCTIONS | TRAINED, json=json)
        return
    for name in names:
        check_name(name)

    from relmo import reproduce as library
    from relmo.analysis.core.untrained import untrained
    from relmo.loading import load, load_vectors
    from relmo.reproduce.controls import Controls
    from relmo.reproduce.data import data_folder

    say = sayer(quiet=quiet)
    loaded = load(model, kinds="bilm", device=device)
    controls = Controls(untrained(loaded, seed), load_vectors(vectors, say))
    done = []
    for name in names:
        with warnings_said(say):
            done.append(library.reproduce(name, loaded, data=data_folder(data), controls=controls, say=say))
        if not json:
            print_reproduction(done[-1])
    if json:
        print_json({"model": model or "bundled", "reproductions": [each.summary() for each in done]})


def _list_names(names: dict[str, str], *, json: bool) -> None:
    if json:
        print_json(names)
        return
    width = 2 + max(map(len, names))
    print(*(f"{name:<{width}}{text}" for name, text in names.items()), sep="\n")
