"""`relmo analyse agreement MODEL PAIRS…`"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from relmo.cli.output import Overwrite, check_plot, say_wrote
from relmo.cli.sources import Tokenizer
from relmo.errors import SettingError
from relmo.settings.arguments import PathName

if TYPE_CHECKING:
    from relmo.analysis.core.causal import Unit
    from relmo.models.bilm import BiLM
    from relmo.models.lm import LanguageModel
    from relmo.text.minimal_pairs import MinimalPair


@dataclass(frozen=True, kw_only=True)
class UnitOptions:
    """What to do with units."""

    sweep: bool = False
    """Set every unit to zero, one at a time, and show which condition needs which unit."""
    together: str | None = None
    """Set these units to zero at once, such as h1.126,h1.338: state, layer and number."""
    trace: str | None = None
    """Show the states and gates of this unit over the sentences, by condition."""
    state: str = "h"
    """Whose units --sweep sets to zero: those of h, which other layers read, or of c, an LSTM's memory."""
    how: Literal["zero", "mean"] = "zero"
    """Set units to zero, or to their mean over the pairs."""
    per_condition: int = 100
    """How many pairs of each condition to draw when units are changed; 0 takes all. Accuracies are of all pairs."""
    draws: int = 100
    """How many random sets of units --together compares with."""

    def check(self) -> None:
        """Raises where an option makes no sense."""
        if self.per_condition < 0:
            raise SettingError(f"--per-condition must be 0 (all) or more, not {self.per_condition}")
        _parse_units(self.together)
        if len(_parse_units(self.trace)) > 1:
            raise SettingError(f"--trace {self.trace}: takes one unit, such as h1.126")

    def run(
        self, model: "LanguageModel | BiLM", pairs: "list[MinimalPair]", *, seed: int, quiet: bool
    ) -> dict[str, Any]:
        """What was asked for, by name."""
        from relmo.analysis.syntax import agreement as library
        from relmo.analysis.syntax.gate_traces import gate_traces
        from relmo.cli.terminal import share_bar

        done: dict[str, Any] = {}
        most = self.per_condition or None
        options: dict[str, Any] = {"how": self.how, "per_condition": most, "seed": seed}
        if self.sweep:
            with share_bar("units off one by one", quiet=quiet) as progress:
                done["sweep"] = library.sweep(model, pairs, state=self.state, progress=progress, **options)
        if self.together:
            with share_bar("units off together", quiet=quiet) as progress:
                options |= {"draws": self.draws, "progress": progress}
                done["together"] = library.ablate_together(model, pairs, _parse_units(self.together), **options)
        if self.trace:
            done["trace"] = gate_traces(model, pairs, _parse_units(self.trace)[0], per_condition=most)
        return done


def agreement(
    model: PathName,
    *files: Path,
    asked: Annotated[UnitOptions, Parameter(name="*", group="Units")] = UnitOptions(),
    tokenizer: Tokenizer = None,
    control: bool = True,
    plot: Path | None = None,
    overwrite: Overwrite = False,
    seed: int = 0,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """How often a model prefers the right one of two forms or sentences, by condition, and which units it needs.

    Accuracies come with 95% intervals, beside those of the same network untrained and of the more frequent form. With
    --sweep every unit is set to zero, one at a time. With --together some units are set to zero at once, and compared
    with random sets of as many units.

        relmo analyse agreement small nounpp.txt simple.txt --sweep --plot sweep.png

        relmo analyse agreement models/mine pairs.csv --together h1.126,h1.338

        relmo analyse agreement models/mine nounpp.txt --trace c1.338 --plot gates.png

    Parameters
    ----------
    model
        The folder of a language model, bidirectional or not; or small, which ships with relmo.
    files
        Minimal pairs: BLiMP's .jsonl, Lakretz's .txt, Linzen's .gold with the .text beside it, Gulordava's .tab, or
        your own .csv or .tsv with columns good and bad, or context, right and wrong, and condition. A folder stands for
        all such files in it.
    control
        Also ask the same network untrained.
    plot
        Draw to this .png or .svg file: the unit's gates with --trace, else the sweep with --sweep, else accuracies.
    seed
        The seed of the untrained network, and of what is drawn.
    device
        Where to compute; auto takes a GPU if there is one.
    json
        Print one JSON object.
    quiet
        Show no progress.
    """
    from relmo.analysis.syntax import agreement as library
    from relmo.cli.terminal import print_json, print_tables, sayer, share_bar, warnings_said
    from relmo.loading import FORWARDS, load
    from relmo.text.minimal_pairs import read_pairs

    check_plot(plot, overwrite=overwrite)
    if not files:
        raise SettingError("minimal pairs are needed: relmo analyse agreement MODEL PAIRS…")
    asked.check()
    pairs = [pair for file in files for pair in read_pairs(file)]
    loaded = load(model, kinds=FORWARDS, device=device).splitting(tokenizer)
    with warnings_said(sayer(quiet=quiet)):
        with share_bar("reading pairs", quiet=quiet) as progress:
            done: dict[str, Any] = {
                "agreement": library.agreement(loaded, pairs, control=control, seed=seed, progress=progress)
            }
        done |= asked.run(loaded, pairs, seed=seed, quiet=quiet)
    if plot is not None:
        [each for each in done.values() if hasattr(each, "plot")][-1].plot(plot)
        say_wrote(plot, quiet=quiet)
    if json:
        given = {"model": model, "files": [str(file) for file in files]}
        print_json(given | {name: each.as_dict() for name, each in done.items()})
    else:
        print_tables(*(each.table() for each in done.values()))


def _parse_units(given: str | None) -> "list[Unit]":
    """Units as reports name them, with commas between: h1.126,c0.3."""
    from relmo.analysis.core.causal import Unit

    found = []
    for name in (given or "").split(",") if given else []:
        match = re.fullmatch(r"\s*([hc])(\d+)\.(\d+)\s*", name)
        if match is None:
            raise SettingError(f"{name!r} is not a unit; write state, layer and number, such as h1.126 or c0.3")
        found.append(Unit(match[1], int(match[2]), int(match[3])))
    return found
