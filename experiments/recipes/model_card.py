"""Print the card of a trained model: description, training data, scores and settings.

python -m experiments.recipes.model_card FOLDER REPORT [SCORES]      report.json of pretraining_text.py, `python -m
experiments … --json`"""

import json
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Any

PARTS = {
    "pretrain-0": """| pretrain-0, pretrain-1 | Wikipedia featured articles (47%), Simple Wikipedia (6%) | CC BY-SA |
| | Wikinews (12%), OpenStax (8%) | CC BY |
| | Project Gutenberg fiction (27%) | public domain |""",
    "pretrain-2": "| pretrain-2, pretrain-3 | English Wikipedia, core topics | CC BY-SA |",
    "pretrain-4": "| pretrain-4 | Project Gutenberg books, authors dead by 1955 | public domain |",
    "pretrain-5": """| pretrain-5 to pretrain-7 | podcasts of Changelog, transcribed (22%) | CC BY-SA 4.0 |
| | United States: diplomacy to 1980 (FRUS), meetings of the Federal Open Market Committee, NASA's flights, \
government blogs (digitalgov, 18F), law of the District of Columbia (25%) | public domain, CC0 |
| | Project Gutenberg non-fiction (7%) | public domain |
| | life-science articles and reviews: eLife (18%) | CC BY 4.0, CC0 |
| | talks, newsletters and meetings: bitcointranscripts, Bitcoin Optech (7%) | MIT |
| | blogs, books, documentation: Carpentries, web.dev, .NET, rOpenSci, The Architecture of Open Source Applications, \
Kubernetes, Programming Historian, GitHub, The Turing Way, Creative Commons certificate (12%) | CC BY |
| | Stack Exchange: questions, answers, comments (4%); MDN (2%) | CC BY-SA |
| | proposals and blogs of Python, Rust and Swift (4%) | public domain, MIT, Apache-2.0 |""",
}

TEXT = """## Trained on

English of many kinds, openly licensed, in paragraphs; {written} million words of {read} million read.

| part | what | licence |
|---|---|---|
{parts}

Part of the text is under CC BY-SA, which requires that adaptations be shared alike. Treat these weights as CC BY-SA
4.0, and credit the sources above.

Excluded: {shared} million words of paragraphs that share eight consecutive words with an evaluation text (WikiText
validation and test, the validation text of the same mix, the development sets of all tasks; held-back test sets could
not be compared), and {repeated} million words of exact duplicates. Paragraphs are split at a random half of the
sentence ends."""

CASES = """

16% of the lines are in lower case, and in another 6% half of the words are in capitals
(`experiments/recipes/other_case.py`)."""

TAUGHT = """

Training had two stages: Muon, and then Adam with knowledge distillation from a model of the original size that was
trained on the same text. Half of the loss was the distillation loss, with an additional loss on the layers."""

USE = {
    "bilm": """## Good for, bad for

- Intended for English of the last two centuries: encyclopaedia, news, fiction, textbooks, and contemporary blogs,
  talks, meetings, questions and answers, and science. Layer 1 encodes more syntax, layer 2 more meaning; tasks learn
  their own layer weights.
- Not intended for other languages or code. Slang and misspelt text are rare in the training text, so their vectors are
  less reliable.
- The training text consists of sentences and short paragraphs.
- The vectors reflect the biases of the sources, which include texts of the nineteenth century, for example about names,
  nations and genders.""",
    "skipgram": """## Good for, bad for

- A baseline for contextual vectors: one vector per word, whatever its sense. Words are in lower case.
- The vectors reflect the biases of the sources, which include texts of the nineteenth century.""",
}


def main() -> None:
    """Print the card."""
    folder, report = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    print(f"# {folder.name}\n\n{introduction(config)}\n")
    counts = [report["parts"][part] for part in config["results"]["trained_on"]]
    millions = {name: f"{sum(part.get(key, 0) for part in counts) / 1e6:.1f}" for name, key in KEYS.items()}
    parts = "\n".join(rows for name, rows in PARTS.items() if f"{name}.txt" in config["results"]["trained_on"])
    text = TEXT + CASES if config["kind"] == "bilm" else TEXT
    text += TAUGHT if config["settings"]["train"].get("teacher") else ""
    print(text.format(parts=parts, **millions), USE[config["kind"]], sep="\n\n", end="\n\n")
    if len(sys.argv) > 3 and config["kind"] == "bilm":
        print("## Figures\n")
        for table in json.loads(Path(sys.argv[3]).read_text(encoding="utf-8"))["reproductions"]:
            print(f"{table['title'].capitalize()} (`python -m experiments {table['name']}`):\n\n{markdown(table)}\n")
    print(f"## Made by\n\n{describe_training(folder, config)}")


KEYS = {
    "read": "words read",
    "written": "words written",
    "shared": "words in paragraphs shared with held-out text",
    "repeated": "words in repeated paragraphs",
}


def introduction(config: dict[str, Any]) -> str:
    """Return a paragraph that describes the model."""
    results, model = config["results"], config["settings"]["model"]
    if config["kind"] == "skipgram":
        return f"Static word vectors (skip-gram): {config['vocab_size']:,} words of {model['dimensions']} numbers each."
    return (
        f"A bidirectional LSTM language model (ELMo): words read by their characters, {model['layers']} layers of "
        f"{model['hidden']} units each way\nprojected to {model['projection']}, {results['parameters']:,} parameters "
        f"with an output layer of {config['vocab_size']:,} words. A layer has\n{2 * model['projection']} numbers for "
        f"a word. Perplexity of held-out text of the same mix: {results['valid_forward_perplexity']:.1f} forward, "
        f"{results['valid_backward_perplexity']:.1f}\nbackward, with {100 * results['valid_unknown_rate']:.1f}% of the "
        "words unknown."
    )


def markdown(table: dict[str, Any]) -> str:
    """Return our scores as a Markdown table, without systems that only the paper has."""
    rows = [row for row in table["rows"] if row["ours"]]
    columns = [column for column in table["columns"] if any(column in row["ours"] for row in rows)]
    lines = [f"| | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for row in rows:
        cells = (format_score(row["ours"].get(column)) for column in columns)
        lines.append(f"| {row['name']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def format_score(score: float | None) -> str:
    """Return a number of a table; large ones without decimals."""
    if score is None:
        return ""
    return f"{score:,.0f}" if isinstance(score, int) or abs(score) >= 1000 else f"{score:,.1f}"


def describe_training(folder: Path, config: dict[str, Any]) -> str:
    """Return recipe, version, commit and the main settings."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    train = tomllib.loads((folder / "settings.toml").read_text(encoding="utf-8"))["train"]
    chosen = ("optimizer", "lr", "weight_decay", "decay", "warmup", "clip_norm", "batch", "unroll", "stretch", "seed")
    settings = ", ".join(f"{name} {train[name]}" for name in chosen if name in train)
    version = f"relmo {config['relmo_version']}, commit {commit or 'unknown'}"
    text = f"`experiments/recipes/bundled_models.sh`, {version}: {settings}"
    return textwrap.fill(f"{text}; every setting is in settings.toml.", 118, break_on_hyphens=False)


if __name__ == "__main__":
    main()
