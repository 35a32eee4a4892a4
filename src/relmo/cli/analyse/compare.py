"""`relmo analyse compare MODEL… --text FILE`"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from relmo.cli.output import Overwrite, check_plot, say_wrote
from relmo.cli.sources import Tokenizer
from relmo.errors import SettingError
from relmo.settings.arguments import PathName

if TYPE_CHECKING:
    from relmo.models.lm import LanguageModel


@dataclass(frozen=True, kw_only=True)
class Beside:
    """What models are compared with, and in what."""

    train: PathName | None = None
    """The text that the models were trained on. An n-gram model of it is compared too, and copies from it are looked
    for."""
    order: int = 20
    """The order of the n-gram model, up to 20."""
    samples: int = 0
    """Let every model write so many texts, from the same seeds. Which model wrote which is printed last."""
    prompt: str = ""
    """What these texts begin with."""
    limit: int = 500
    """How many symbols such a text has."""
    temperature: float = 1.0
    """Lower is safer, higher is bolder."""
    feature: str | None = None
    """A feature (relmo analyse cells --list-features): show how well the units of each model follow it. The models keep
    their order, such as that of a run's checkpoints."""

    def check(self) -> None:
        """Raises where an option makes no sense."""
        if self.samples < 0 or self.limit < 1:
            raise SettingError("--samples must be 0 or more, and --limit 1 or more")


def compare(
    *models: PathName,
    text: str,
    beside: Annotated[Beside, Parameter(name="*", group="Comparison")] = Beside(),
    symbols: int = 100_000,
    plot: Path | None = None,
    overwrite: Overwrite = False,
    seed: int = 0,
    tokenizer: Tokenizer = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Compares language models on the same text: what symbols cost them, by kind and by the distance to the bracket
    they close. With --train, also compares them with an n-gram model of their training text.

    For example:

        relmo analyse compare models/lstm --text held-out.txt --train train.txt --samples 2

        relmo analyse compare models/lstm models/gru --text held-out.txt --plot losses.png

        relmo analyse compare models/epoch-1 models/epoch-2 --text held-out.txt --feature quotes

    Parameters
    ----------
    models
        Folders of language models that split text alike.
    text
        A text that none of them was trained on; - for standard input.
    symbols
        How many of the text's first symbols to take; 0 takes all.
    plot
        Draw the losses to this .png or .svg file.
    seed
        The seed of the samples.
    device
        Where to compute; auto takes a GPU if there is one.
    json
        Print one JSON object.
    quiet
        Show no progress.
    """
    from relmo.analysis.core.files import read_document
    from relmo.analysis.units import compare as library
    from relmo.cli.terminal import print_json, print_tables, share_bar

    beside.check()
    check_plot(plot, overwrite=overwrite)
    loaded = _load_models(models, tokenizer, device)
    first = next(iter(loaded.values()))
    library.check_alike(loaded)
    document = read_document(first, text, symbols=symbols or None)
    done: dict[str, Any] = {}
    if beside.feature:
        from relmo.analysis.core.features import tracks

        track = tracks(document, [beside.feature])[beside.feature]
        done["emergence"] = library.emergence(loaded, document, track)
    compared = loaded
    training = None
    if beside.train:
        compared, training = _with_ngram(loaded, beside, quiet=quiet)
    with share_bar("reading", quiet=quiet) as progress:
        done["losses"] = library.compare_losses_of(compared, document.symbols, progress=progress)
    made = _sampled(compared, beside, seed)
    if training is not None:
        done["copies"] = Copies(_copies(compared, made, document.symbols, training))
    if plot is not None:
        done["losses"].plot(plot)
        say_wrote(plot, quiet=quiet)
    if json:
        texts = [{"seed": s, "model": each.model, "text": each.text} for s, some in made for each in some]
        print_json({"text": text} | {name: each.as_dict() for name, each in done.items()} | {"samples": texts})
        return
    print_tables(*(each.table() for each in done.values()))
    _print_samples(made)


def _load_models(
    sources: tuple[str, ...], tokenizer: Literal["words", "whitespace"] | None, device: str
) -> "dict[str, LanguageModel]":
    """Language models by the names of their folders, or by their paths where names are the same."""
    from relmo.loading import load

    if not sources:
        raise SettingError("a model is needed: relmo analyse compare MODEL… --text FILE")
    short = [Path(source).name for source in sources]
    names = short if len(set(short)) == len(short) else list(sources)
    if len(set(names)) < len(names):
        raise SettingError("the same model is given twice")
    loaded = (load(source, kinds="lm", device=device).splitting(tokenizer) for source in sources)
    return dict(zip(names, loaded, strict=True))


def _with_ngram(models: "dict[str, LanguageModel]", beside: Beside, *, quiet: bool) -> "tuple[dict[str, Any], Any]":
    """The models and an n-gram model of the training text, and the text's ids."""
    import tempfile

    import numpy as np

    from relmo.analysis.units.ngram import ngram_like
    from relmo.cli.terminal import share_bar
    from relmo.text.encode import encode_file

    assert beside.train is not None
    first = next(iter(models.values()))
    with tempfile.TemporaryDirectory() as scratch, share_bar("counting n-grams", quiet=quiet) as progress:
        stream = encode_file(beside.train, first.settings.text, first.vocabulary, Path(scratch))
        ids = np.array(stream.ids)
        ngram = ngram_like(first, ids, order=beside.order, progress=progress)
    return models | {f"{beside.order}-gram": ngram}, ids


def _sampled(models: "dict[str, LanguageModel]", beside: Beside, seed: int) -> "list[tuple[int, list[Any]]]":
    from relmo.analysis.units.compare import samples

    options: dict[str, Any] = {"prompt": beside.prompt, "limit": beside.limit, "temperature": beside.temperature}
    return [(s, samples(models, seed=s, **options)) for s in range(seed, seed + beside.samples)]


def _copies(
    models: "dict[str, LanguageModel]", made: "list[tuple[int, list[Any]]]", held_out: list[str], training: Any
) -> dict[str, dict[int, float]]:
    """How much of the samples, and of the text that no model has read, stands in the training text."""
    import numpy as np

    from relmo.analysis.units.compare import COPIED, copied

    first = next(iter(models.values()))
    lengths = COPIED[first.settings.text.unit]
    found = {"the text given": copied(first.vocabulary.ids(held_out), training, lengths)}
    for name in models:
        own = [first.encode(each.text) for _, some in made for each in some if each.model == name]
        if own:
            found[f"samples of {name}"] = copied(np.concatenate(own), training, lengths)
    return found


@dataclass(frozen=True)
class Copies:
    """The shares of stretches that stand in the training text, for each text and length."""

    shares: dict[str, dict[int, float]]

    def as_dict(self) -> dict[str, Any]:
        """By name and length."""
        return {name: {str(length): share for length, share in each.items()} for name, each in self.shares.items()}

    def table(self) -> Any:
        """A row for each text."""
        from relmo.analysis.core.show import Table, figure

        lengths = list(next(iter(self.shares.values())))
        rows = [[name, *(figure(100 * each[length], 1) for length in lengths)] for name, each in self.shares.items()]
        columns = ["stretches of so many symbols", *map(str, lengths)]
        return Table(columns, rows, "percent that stand in the training text as they are")


def _print_samples(made: "list[tuple[int, list[Any]]]") -> None:
    """Texts without their models' names, and the names at the end."""
    for seed, some in made:
        for number, each in enumerate(some):
            print(f"\n--- seed {seed}, text {chr(ord('A') + number)}\n{each.text}")
    if made:
        print("\n--- which was which")
        for seed, some in made:
            print(f"seed {seed}: " + ", ".join(f"{chr(ord('A') + n)} {each.model}" for n, each in enumerate(some)))
