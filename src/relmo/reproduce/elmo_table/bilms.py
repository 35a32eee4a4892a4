"""What a biLM is, in a line: looked up before anything is trained, so that a wrong name is told at once."""

from collections.abc import Mapping
from pathlib import Path

from relmo.errors import WrongKindError
from relmo.settings.kinds import KINDS
from relmo.store.folder import read_config
from relmo.store.original import locate
from relmo.store.references import bundled


def describe_bilms(sources: Mapping[str, str]) -> dict[str, str]:
    """Of each biLM, by its name: how large it is, what it was trained on, how well it predicts."""
    return {name: _describe(source) for name, source in sources.items()}


def _describe(source: str) -> str:
    place = bundled(source) or Path(source)
    if locate(place) is not None:
        return "original ELMo files"
    config = read_config(place)
    if config["kind"] != "bilm":
        called = KINDS[config["kind"]].called if config["kind"] in KINDS else "something else"
        raise WrongKindError(f"--model {source}: is {called} ({config['kind']}); give a bidirectional model (bilm)")
    results = config.get("results")
    results = results if isinstance(results, dict) else {}
    facts = {
        "parameters": "{:,.0f} parameters with its output layer",
        "train_tokens": "{:,.0f} tokens of text",
        "valid_perplexity": "perplexity {:.1f}",
    }
    known = {key: results.get(key) for key in facts}
    said = [facts[key].format(value) for key, value in known.items() if isinstance(value, int | float)]
    return ", ".join(said) or "nothing is known of its training"
