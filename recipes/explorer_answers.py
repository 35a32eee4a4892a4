"""Makes ahead what the explorer shows of the models that ship: answers.json in each model's folder, and counting.json.

    python recipes/explorer_answers.py [MODEL …]          all models where none is named; some minutes of one CPU core

Name the cells first, since the answers are about them (recipes/example_models.sh does both):

    relmo analyse cells MODEL TEXT --ablate zero --name-cells
"""

import sys
import time

from relmo.explorer.align import AlignSession, is_seq2seq
from relmo.explorer.examples import COUNTING, example, shipped
from relmo.explorer.prepare import make_aligned, make_ready
from relmo.explorer.ready import READY, write_ready
from relmo.explorer.session import Session
from relmo.explorer.work import Worker

COUNT = {"language": "anbn", "limit": 30, "steps": 1500}


def main(names: list[str]) -> None:
    """Writes the answers of these models."""
    for name in names:
        begun, known = time.monotonic(), example(name)
        assert known is not None, f"{name} does not ship"
        (known.folder / READY).unlink(missing_ok=True)
        if is_seq2seq(name):
            answers = make_aligned(AlignSession.open(name, device="cpu"))
        else:
            worker = Worker(Session.open(name, device="cpu"), lambda other: Session.open(other, device="cpu"))
            answers = make_ready(worker.session, worker)
            if not COUNTING.exists():
                write_ready(COUNTING, {"count": worker.do("count", COUNT, lambda share: None)})
            worker.close()
        write_ready(known.folder / READY, answers)
        size = (known.folder / READY).stat().st_size
        print(f"{name}: {', '.join(answers)}; {size:,} bytes, {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or shipped())
