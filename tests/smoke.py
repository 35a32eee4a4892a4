"""Whether an installed relmo works: what a user does first, with nothing but the package itself.

python tests/smoke.py               run it outside of the source tree, by the Python that relmo is installed for
python tests/smoke.py --kernels     the compiled kernels must be there
python tests/smoke.py --no-kernels  they must not
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import relmo

TEXT = "The bank of the river .\nA bank lends money .\n"


def run(*arguments: str, given: str = "") -> str:
    """A command of relmo's; -> what it prints."""
    command = [sys.executable, "-m", "relmo", *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Looks, embeds, trains, predicts."""
    place = Path(relmo.__file__).parent
    kernels = sorted(path.name for path in (place / "nn" / "kernels").glob("*.so"))
    assert "--kernels" not in sys.argv or kernels, "there are no compiled kernels"
    assert "--no-kernels" not in sys.argv or not kernels, f"there are compiled kernels: {kernels}"
    assert run("--version").strip() == relmo.__version__
    river, money = relmo.load().embed(TEXT.splitlines(), layers="top")
    assert river.shape == (6, 512)
    assert money.shape == (5, 512)
    assert abs(river[1] - money[1]).max() > 0.1, "a word has one vector in two sentences"
    with tempfile.TemporaryDirectory() as folder:
        vectors, model, names = (str(Path(folder) / name) for name in ("v.h5", "lm", "names"))
        assert json.loads(run("embed", "--out", vectors, "--json", given=TEXT))["tokens"] == 11
        run("train", "lm", str(place / "data" / "alice.txt"), "--hidden", "16", "--epochs", "0.05", "--out", model)
        assert len(run("generate", model, "--limit", "20")) > 5
        people = str(place / "data" / "names.iob2")
        run("train", "tagger", people, "--preset", "ner", "--elmo", "small", "--epochs", "1", "--out", names)
        assert "Anna" in run("predict", names, given="Anna moved to Oslo.\n")
    print(f"relmo {relmo.__version__} at {place}: all is well, kernels: {', '.join(kernels) or 'none'}")


if __name__ == "__main__":
    main()
