"""Answers that take long, made ahead for the models that ship: a screen shows them at once. `prepare.py` makes them;
recipes/explorer_answers.py writes them as answers.json into each model's folder."""

import json
from pathlib import Path
from typing import Any

from relmo.disk.files import parse_json, read_small
from relmo.disk.outputs import atomic
from relmo.errors import ModelError

READY = "answers.json"
LARGEST = 1 << 22


def write_ready(path: Path, answers: dict[str, Any]) -> None:
    """Writes answers to a file, whole or not at all; numbers with five digits, which is more than a page shows."""
    text = json.dumps(_shortened(answers), ensure_ascii=False, separators=(",", ":")) + "\n"
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _shortened(value: Any) -> Any:
    """JSON with numbers of few digits."""
    if isinstance(value, dict):
        return {name: _shortened(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shortened(each) for each in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def read_ready(path: Path) -> dict[str, Any]:
    """The answers of a file; none where there is no file."""
    if not path.is_file():
        return {}
    try:
        found = parse_json(read_small(path, LARGEST))
    except ValueError as error:
        raise ModelError(f"{path}: {error}; write it again: recipes/explorer_answers.py") from None
    if not isinstance(found, dict) or not all(isinstance(each, dict) for each in found.values()):
        raise ModelError(f"{path}: holds no answers by name; write it again: recipes/explorer_answers.py")
    return found
