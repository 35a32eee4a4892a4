"""Progress of work in parts."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from relmo.settings.arguments import Progress


def split_progress(progress: Progress | None, weights: Sequence[float]) -> list[Progress]:
    """Return one progress callback per part; `weights` are the durations of the parts relative to each other."""
    bounds = [0.0, *accumulate(weights)]

    def make_callback(begin: float, end: float) -> Progress:
        if progress is None:
            return lambda share: None
        return lambda share: progress((begin + (end - begin) * share) / bounds[-1])

    return [make_callback(begin, end) for begin, end in pairwise(bounds)]
