"""`relmo surprisal` warns about a text that is not in the model's language."""

from contextlib import suppress
from pathlib import Path

import pytest

from relmo.cli import main


@pytest.mark.parametrize(
    ("text", "warned"),
    [("The old man reads the book.", False), ("Le vieil homme lisait tranquillement ces vieux livres.", True)],
)
def test_many_unknown_words_are_reported(
    text: str, warned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_text(text)
    with suppress(SystemExit):
        main(["surprisal", "small", str(tmp_path / "text.txt"), "--device", "cpu"])
    captured = capsys.readouterr()
    assert "surprisal" in captured.out
    assert ("unknown to this model" in captured.err) == warned
