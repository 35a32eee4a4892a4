"""Real signals at random times while a bundled model embeds, going on in the same process; then every single step of a
small model interrupted. No vector may be wrong afterwards.

    python tests/campaigns/interruptions.py        about half an hour; exit status 1 where a vector is wrong

`make test` takes some of the steps: tests/embedding/test_interruptions.py.
"""

import random
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "embedding"))

import test_interruptions

import relmo
from relmo.models.bilm import BiLM

SIGNALS = 400
LONGEST = 0.3  # seconds until a signal comes
CALL = 40  # sentences


def embed_interrupted(model: BiLM, sentences: list[str], seconds: float) -> bool:
    """Embeds sentences, and gets a signal after some time. -> whether it was interrupted."""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        model.embed(sentences)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return True
    return False


def signals() -> int:
    """How many sentences are wrong, of all that come after an interruption."""
    text = Path(relmo.__file__).with_name("data").joinpath("alice.txt").read_text(encoding="utf-8")
    lines = [line for line in text.split("\n") if line.strip()]
    model = relmo.load("small", device="cpu")
    assert isinstance(model, BiLM)
    expected = dict(zip(lines, model.embed(lines), strict=True))
    model.embedder.forget_words()
    rng, interrupted, wrong = random.Random(0), 0, 0
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    for _ in range(SIGNALS):
        interrupted += embed_interrupted(model, rng.choices(lines, k=300), rng.uniform(0, LONGEST))
        some = rng.choices(lines, k=CALL)
        wrong += sum(not np.array_equal(a, expected[line]) for line, a in zip(some, model.embed(some), strict=True))
    wrong += sum(not np.array_equal(a, expected[line]) for line, a in zip(lines, model.embed(lines), strict=True))
    print(f"{interrupted} of {SIGNALS} calls interrupted; {wrong} of {SIGNALS * CALL + len(lines):,} sentences wrong")
    return wrong


if __name__ == "__main__":
    errors = signals()
    test_interruptions.SAMPLED = 1 << 30
    sys.exit(bool(pytest.main([test_interruptions.__file__, "--timeout=0", "-x"]) or errors))
