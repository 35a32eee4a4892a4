"""Sentences with a noun between subject and verb, of all four combinations of numbers: the boys near the car greet.

    noun_pp(per_condition=100)        minimal pairs; conditions "nounpp singular plural" and so on, the subject's first

The form is that of the task NounPP of Lakretz et al. 2019, The emergence of number and syntax units in LSTM language
models: The NOUN PREPOSITION the NOUN VERB. The words are common; those that a model does not know can be left out.
"""

from collections.abc import Container
from itertools import product

import numpy as np

from relmo.errors import CorpusError, SettingError
from relmo.text.minimal_pairs import MinimalPair


def _forms(words: str) -> dict[str, str]:
    """boy/boys girl/girls -> {"boy": "boys", "girl": "girls"}."""
    return dict(word.split("/") for word in words.split())


SUBJECTS = _forms(
    "boy/boys girl/girls man/men woman/women doctor/doctors lawyer/lawyers teacher/teachers farmer/farmers "
    "singer/singers writer/writers friend/friends mother/mothers father/fathers brother/brothers student/students "
    "player/players soldier/soldiers king/kings child/children judge/judges"
)
ATTRACTORS = _forms(
    "car/cars house/houses table/tables tree/trees door/doors bridge/bridges river/rivers wall/walls chair/chairs "
    "window/windows"
)
PREPOSITIONS = ("near", "behind", "beside", "above", "under")
VERBS = _forms(
    "knows/know sees/see meets/meet understands/understand remembers/remember avoids/avoid admires/admire "
    "encourages/encourage inspires/inspire observes/observe believes/believe accepts/accept allows/allow "
    "protects/protect recognizes/recognize"
)
NUMBERS = ("singular", "plural")
FEWEST = 4  # words of a kind that a model must know


def noun_pp(*, per_condition: int = 100, known: Container[str] | None = None, seed: int = 0) -> list[MinimalPair]:
    """Draws `per_condition` pairs for each of the four conditions. With `known`, only words are taken of which both the
    singular and the plural are known. The same nouns, prepositions and verbs stand in all conditions, item by item."""
    if per_condition < 1:
        raise SettingError(f"at least one pair of each condition is needed, not {per_condition}")
    subjects, attractors, verbs = (_some(table, known) for table in (SUBJECTS, ATTRACTORS, VERBS))
    prepositions = [word for word in PREPOSITIONS if known is None or word in known]
    every = list(product(subjects, prepositions, attractors, verbs))
    if min(len(subjects), len(attractors), len(verbs)) < FEWEST or not prepositions:
        raise CorpusError(
            "the model knows too few of the common nouns and verbs; give minimal pairs of its own language"
        )
    drawn = np.random.default_rng(seed).choice(len(every), min(per_condition, len(every)), replace=False)
    found = []
    for first, second in product((0, 1), (0, 1)):
        for place in np.sort(drawn):
            subject, preposition, attractor, verb = every[place]
            context = ["The", subject[first], preposition, "the", attractor[second]]
            condition = f"nounpp {NUMBERS[first]} {NUMBERS[second]}"
            found.append(MinimalPair(condition, [*context, verb[first]], [*context, verb[1 - first]]))
    return found


def _some(table: dict[str, str], known: Container[str] | None) -> list[tuple[str, str]]:
    """Words in the singular and the plural, both of which are known."""
    return [pair for pair in table.items() if known is None or all(word in known for word in pair)]
