"""`relmo evaluate MODEL FILE…`"""

from pathlib import Path
from typing import Literal

from relmo.errors import SettingError


def evaluate(
    model: Path,
    *files: str,
    batch: int = 16,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Score a model on files: perplexity, bits per character, negative log-likelihood.

    Every symbol of a file is predicted exactly once, the state carried from its beginning to its end.

        relmo evaluate models/mine test.txt

    Parameters
    ----------
    model
        The model's folder.
    files
        Text files, as for training; each is scored by itself.
    batch
        How many places of a text are read side by side; it changes the speed, not the result.
    device
        Where to compute; auto takes a GPU where there is one.
    json
        Print one JSON object.
    quiet
        Print the perplexity alone, a line a file.
    """
    from relmo.cli.report import print_json, print_table, progress_bar
    from relmo.lm import LanguageModel

    if not files:
        raise SettingError("no files to score: relmo evaluate MODEL FILE…")
    if batch < 1:
        raise SettingError(f"batch must be 1 or more, not {batch}")
    loaded = LanguageModel.from_pretrained(model, device=device)
    with progress_bar(quiet=quiet) as bar:
        scores = {file: loaded.evaluate(file, lanes=batch, watch=bar(file)) for file in files}
    total = sum(list(scores.values())[1:], start=next(iter(scores.values())))
    if json:
        rows = [{"file": file} | score.summary() for file, score in scores.items()]
        print_json({"model": str(model), "files": rows, "total": total.summary()})
        return
    if quiet:
        print(*(f"{score.perplexity:.4f}" for score in scores.values()), sep="\n")
        return
    shown = {**scores, **({"all": total} if len(scores) > 1 else {})}
    print_table(
        ["file", "symbols", "unknown", "perplexity", "bits/character", "nats/symbol", "nll"],
        [
            [
                file,
                f"{score.symbols:,}",
                f"{score.unknown:,} ({score.unknown / score.symbols:.2%})",
                f"{score.perplexity:,.3f}",
                f"{score.bits_per_character:.4f}",
                f"{score.nats:.4f}",
                f"{score.nll:,.1f}",
            ]
            for file, score in shown.items()
        ],
    )
