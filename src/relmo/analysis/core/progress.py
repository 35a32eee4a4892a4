"""Work in parts: each part is told its own share, and the caller hears the share of the whole."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from relmo.settings.arguments import Progress


def split_progress(progress: Progress | None, weights: Sequence[float]) -> list[Progress]:
    """For work in parts that take so long each: a function for each part, which is told the share of that part."""
    bounds = [0.0, *accumulate(weights)]

    def part(begin: float, end: float) -> Progress:
        if progress is None:
            return lambda share: None
        return lambda share: progress((begin + (end - begin) * share) / bounds[-1])

    return [part(begin, end) for begin, end in pairwise(bounds)]
