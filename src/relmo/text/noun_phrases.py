"""Minimal pairs with a noun between subject and verb, in all combinations of numbers: The boys near the car greet.
The task NounPP of Lakretz et al. 2019, The emergence of number and syntax units in LSTM language models."""

from collections.abc import Container
from itertools import product

import numpy as np

from relmo.errors import CorpusError, SettingError
from relmo.text.minimal_pairs import MinimalPair


def _parse_forms(words: str) -> dict[str, str]:
    """Parse boy/boys girl/girls to {"boy": "boys", "girl": "girls"}."""
    return dict(word.split("/") for word in words.split())


SUBJECTS = _parse_forms(
    "boy/boys girl/girls man/men woman/women doctor/doctors lawyer/lawyers teacher/teachers farmer/farmers "
    "singer/singers writer/writers friend/friends mother/mothers father/fathers brother/brothers student/students "
    "player/players soldier/soldiers king/kings child/children judge/judges"
)
ATTRACTORS = _parse_forms(
    "car/cars house/houses table/tables tree/trees door/doors bridge/bridges river/rivers wall/walls chair/chairs "
    "window/windows"
)
PREPOSITIONS = ("near", "behind", "beside", "above", "under")
VERBS = _parse_forms(
    "knows/know sees/see meets/meet understands/understand remembers/remember avoids/avoid admires/admire "
    "encourages/encourage inspires/inspire observes/observe believes/believe accepts/accept allows/allow "
    "protects/protect recognizes/recognize"
)
NUMBERS = ("singular", "plural")
MIN_WORDS = 4  # of each class that a model must know


def noun_pp(*, per_condition: int = 100, known: Container[str] | None = None, seed: int = 0) -> list[MinimalPair]:
    """Sample pairs for each of the four conditions, such as "nounpp singular plural", the subject's number first, with
    the same nouns, prepositions and verbs item by item; `known` restricts the words."""
    if per_condition < 1:
        raise SettingError(f"per_condition must be at least 1, not {per_condition}")
    subjects, attractors, verbs = (
        [pair for pair in table.items() if known is None or all(word in known for word in pair)]
        for table in (SUBJECTS, ATTRACTORS, VERBS)
    )
    prepositions = [word for word in PREPOSITIONS if known is None or word in known]
    items = list(product(subjects, prepositions, attractors, verbs))
    if min(len(subjects), len(attractors), len(verbs)) < MIN_WORDS or not prepositions:
        raise CorpusError("the model knows too few of the common nouns and verbs; give minimal pairs in its language")
    sample = np.random.default_rng(seed).choice(len(items), min(per_condition, len(items)), replace=False)
    pairs = []
    for number, attractor_number in product((0, 1), (0, 1)):
        for index in np.sort(sample):
            subject, preposition, attractor, verb = items[index]
            context = ["The", subject[number], preposition, "the", attractor[attractor_number]]
            condition = f"nounpp {NUMBERS[number]} {NUMBERS[attractor_number]}"
            pairs.append(MinimalPair(condition, [*context, verb[number]], [*context, verb[1 - number]]))
    return pairs
