"""Compare the nearest neighbours of contextual and static vectors, for one word in two sentences.

Both models are bundled. The contextual vectors are those of the top layer of the biLM, for all tokens of 154 sentences.
For a word in a new sentence, the nearest tokens are printed. The static vector of a word does not depend on the
sentence, so its neighbours are the same for both.
"""

from importlib import resources

import numpy as np

import relmo

PAIRS = {
    "bank": ("A fox ran along the bank of the stream.", "The bank lends money to small firms."),
    "play": ("The actors rehearsed the new play for a month.", "Snow on the field stopped play before half time."),
    "spring": ("Lambs are born in spring.", "A spring inside the lock was bent."),
    "light": ("A red light was burning in the hall.", "She wore a light coat over her dress."),
}

elmo, static = relmo.load("small", device="cpu"), relmo.load("words")
text = (resources.files("relmo") / "data" / "sentences.txt").read_text(encoding="utf-8")
sentences = [elmo.tokens(line) for line in text.splitlines()]
occurrences = [(tokens, i) for tokens in sentences for i in range(len(tokens))]


def normalise(vectors: np.ndarray) -> np.ndarray:
    """Scale to unit length, so that dot products are cosines."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def mark(tokens: list[str], position: int) -> str:
    """Return the sentence with one token in brackets."""
    words = [f"[{token}]" if i == position else token for i, token in enumerate(tokens)]
    return " ".join(words).replace(" .", ".").replace(" ,", ",")


vectors = normalise(np.concatenate(elmo.embed(sentences, layers="top")))  # (tokens, dim)
for word, queries in PAIRS.items():
    for query in queries:
        tokens = elmo.tokens(query)
        position = tokens.index(word)
        cosines = vectors @ normalise(elmo.embed([tokens], layers="top")[0][position])  # (tokens,)
        print(mark(tokens, position))
        for best in np.argsort(-cosines)[:3]:
            print(f"    {cosines[best]:.2f}  {mark(*occurrences[best])}")
    print(f"static vector of {word}, for both sentences")
    neighbours = static.most_similar(word, topn=5)
    print("   ", ", ".join(f"{neighbour} {cosine:.2f}" for neighbour, cosine in neighbours), "\n")
