"""The least and the greatest value of every number, and settings that would be read and do nothing."""

import re
from collections.abc import Iterable, Mapping

from relmo.errors import SettingError, shown

NEARLY_0, NEARLY_1 = 1e-5, 0.999999
BOUNDS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(
        ("layers", "hidden", "embedding", "projection", "samples", "batch", "unroll", "accumulate"), (1, 1 << 24)
    ),
    **dict.fromkeys(("vocabulary_size", "min_count", "validate_every", "patience", "log_every"), (1, 1 << 40)),
    "stretch": (1, 1 << 40),
    **dict.fromkeys(
        (
            "dropout",
            "state_dropout",
            "output_dropout",
            "input_dropout",
            "word_dropout",
            "weight_drop",
            "average",
            "momentum",
        ),
        (0, NEARLY_1),
    ),
    **dict.fromkeys(("valid_fraction", "test_fraction"), (0, 0.5)),
    "layers": (1, 1000),
    "dimensions": (1, 1 << 16),
    **dict.fromkeys(("window", "negatives"), (1, 100)),
    "subsample": (1e-12, 1),
    "initial_accumulator": (0, 1e9),
    "softmax_first": (0, 1e9),
    "teacher_share": (0, 1),
    "teacher_layers": (0, 1e9),
    **dict.fromkeys(("char_dim", "softmax_dim"), (1, 1 << 16)),
    "max_characters": (3, 1 << 12),
    "highway": (0, 1000),
    **dict.fromkeys(("cell_clip", "projection_clip", "clip_norm"), (0, 1e9)),
    "forget_bias": (-1e9, 1e9),
    "seed": (0, 1 << 62),
    "threads": (1, 4096),
    "checkpoint_every": (0, 1e9),
    "order": (1, 20),
    "epochs": (1e-9, 1e9),
    "minutes": (1e-3, 1e7),
    "lr": (1e-12, 1e6),
    "weight_decay": (0, 1e6),
    "warmup": (0, 1 << 40),
    "final_lr": (0, 1),
}
"""The least and the greatest value a setting may have."""


def check_bounds(*sections: object, bounds: Mapping[str, tuple[float, float]] = BOUNDS) -> None:
    """Every number lies within its bounds."""
    for section in sections:
        for name, value in vars(section).items():
            low, high = bounds.get(name, (-float("inf"), float("inf")))
            if isinstance(value, int | float) and not low <= value <= high:
                raise SettingError(f"{name} must be {_range(low, high)}, not {shown(value)}")


def _range(low: float, high: float) -> str:
    """Bounds in words. A bound that only keeps out 0 or 1 is named by these."""
    most = "below 1" if high == NEARLY_1 else f"{high:,.10g}"
    return f"above 0 and at most {most}" if 0 < low < NEARLY_0 else f"from {low:,.10g} to {most}"


def refuse(section: object, names: Iterable[str], where: str) -> None:
    """None of these settings may be other than its default: it would be read and do nothing."""
    default = type(section)()
    for name in names:
        if getattr(section, name) != getattr(default, name):
            raise SettingError(f"{name} has no meaning for {where}; leave it out")


MOST_FILTERS = 1000


def parse_filters(filters: Iterable[str]) -> list[tuple[int, int]]:
    """["1x32", "2x64"], or ["1x32,2x64"] -> [(1, 32), (2, 64)], (width, how many)."""
    filters = [part for text in filters for part in text.replace(",", " ").split()]
    if len(filters) > MOST_FILTERS:
        raise SettingError(f"filters are of at most {MOST_FILTERS} widths, not {len(filters):,}")
    found = [re.fullmatch(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,6})", text) for text in filters]
    if not found or None in found:
        given = shown(" ".join(filters)) if filters else "none"
        raise SettingError(f"filters are WIDTHxCOUNT, for example 1x32,2x32,3x64, not {given}")
    return [(int(match[1]), int(match[2])) for match in found if match]
