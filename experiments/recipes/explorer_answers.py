"""Precompute the explorer's answers for the bundled models: answers.json in each model folder, and counting.json.

    python -m experiments.recipes.explorer_answers [MODEL …]     by default all models; minutes on one CPU core

Name the cells first, since the answers are about them (experiments/recipes/example_models.sh does both):

    relmo analyse cells MODEL TEXT --ablate zero --name-cells
"""

import sys
import time

from relmo.explorer.align import AlignSession, is_seq2seq
from relmo.explorer.examples import COUNTING, find_example, list_examples
from relmo.explorer.precomputed import ANSWERS_FILE, precompute, write_answers
from relmo.explorer.session import Session
from relmo.explorer.work import Worker

COUNT = {"language": "anbn", "limit": 30, "steps": 1500}


def main(names: list[str]) -> None:
    """Write the answers of these models."""
    for name in names:
        start_time, model = time.monotonic(), find_example(name)
        assert model is not None, f"{name} is not bundled"
        (model.folder / ANSWERS_FILE).unlink(missing_ok=True)
        if is_seq2seq(name):
            session = AlignSession.open(name, device="cpu")
            answers = {"align": session.align({"source": session.initial_source})}
        else:
            worker = Worker(Session.open(name, device="cpu"), lambda other: Session.open(other, device="cpu"))
            answers = precompute(worker.session, worker)
            if not COUNTING.exists():
                write_answers(COUNTING, {"count": worker.run("count", COUNT, lambda share: None)})
            worker.close()
        write_answers(model.folder / ANSWERS_FILE, answers)
        size = (model.folder / ANSWERS_FILE).stat().st_size
        print(f"{name}: {', '.join(answers)}; {size:,} bytes, {time.monotonic() - start_time:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list_examples())
