"""`relmo evaluate MODEL FILE…`"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from relmo.errors import ModelError, SettingError

if TYPE_CHECKING:
    from relmo.evaluate import BiScore, Score


def evaluate(
    model: str,
    *files: str,
    words: Path | None = None,
    batch: int = 16,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Score a model on files: perplexity, negative log-likelihood, and bits per character; of a bidirectional model,
    the perplexity of each direction.

    Every symbol of a file is predicted exactly once (in each direction), the state carried from its beginning to its
    end.

        relmo evaluate models/mine test.txt

    Parameters
    ----------
    model
        The model's folder, or small, which ships with relmo.
    files
        Text files, as for training; each is scored by itself.
    words
        Bidirectional models: write each word with its negative log-likelihoods to this file, with tabs between columns.
    batch
        How many places of a text are read side by side; it changes the speed, not the result.
    device
        Where to compute; auto takes a GPU where there is one.
    json
        Print one JSON object.
    quiet
        Print the perplexity alone, a line a file.
    """
    from relmo.bilm import BiLM
    from relmo.cli.report import print_json, print_table, progress_bar
    from relmo.lm import LanguageModel
    from relmo.loading import load

    if not files:
        raise SettingError("no files to score: relmo evaluate MODEL FILE…")
    if batch < 1:
        raise SettingError(f"batch must be 1 or more, not {batch}")
    loaded = load(model, device=device)
    if not isinstance(loaded, LanguageModel | BiLM):
        raise ModelError(f"{model}: is not a language model; relmo evaluate scores models of kind lm and bilm")
    if words is not None and (len(files) > 1 or not isinstance(loaded, BiLM)):
        raise SettingError("--words goes with a bidirectional model and one file")
    scores: dict[str, Score | BiScore] = {}
    with progress_bar(quiet=quiet) as bar:
        for file in files:
            more = {} if words is None else {"words": words}
            scores[file] = loaded.evaluate(file, lanes=batch, watch=bar(file), **more)
    total = sum(list(scores.values())[1:], start=next(iter(scores.values())))
    if json:
        rows = [{"file": file} | score.summary() for file, score in scores.items()]
        print_json({"model": model, "files": rows, "total": total.summary()})
    elif quiet:
        print(*(f"{score.perplexity:.4f}" for score in scores.values()), sep="\n")
    else:
        shown = {**scores, **({"all": total} if len(scores) > 1 else {})}
        tables = [{"file": file} | (columns(score)) for file, score in shown.items()]
        print_table(list(tables[0]), [list(row.values()) for row in tables])


def columns(score: "Score | BiScore") -> dict[str, str]:
    """A row of the table, by column."""
    from relmo.evaluate import BiScore

    if isinstance(score, BiScore):
        return {
            "tokens": f"{score.tokens:,}",
            "unknown": f"{score.unknown:,} ({score.unknown / score.tokens:.2%})",
            "forward": f"{score.forward_perplexity:,.3f}",
            "backward": f"{score.backward_perplexity:,.3f}",
            "joint": f"{score.perplexity:,.3f}",
            "average": f"{score.average_perplexity:,.3f}",
        }
    return {
        "symbols": f"{score.symbols:,}",
        "unknown": f"{score.unknown:,} ({score.unknown / score.symbols:.2%})",
        "perplexity": f"{score.perplexity:,.3f}",
        "bits/character": f"{score.bits_per_character:.4f}",
        "nats/symbol": f"{score.nats:.4f}",
        "nll": f"{score.nll:,.1f}",
    }
