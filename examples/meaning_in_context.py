"""One word in two sentences: what its contextual vectors are near to, and what its one static vector is near to.

Both models ship with relmo. The biLM's top layer, where meanings part best, gives every word of 154 sentences a vector;
for a word in a new sentence the nearest of these are shown, whatever words they belong to. A static vector belongs to
the word alone, so its neighbours are the same for both sentences.
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
places = [(tokens, i) for tokens in sentences for i in range(len(tokens))]


def unit(vectors: np.ndarray) -> np.ndarray:
    """With length 1, so that products are cosines."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def marked(tokens: list[str], place: int) -> str:
    """The sentence with one word in brackets."""
    words = [f"[{token}]" if i == place else token for i, token in enumerate(tokens)]
    return " ".join(words).replace(" .", ".").replace(" ,", ",")


vectors = unit(np.concatenate(elmo.embed(sentences, layers="top")))  # (words, dimensions)
for word, queries in PAIRS.items():
    for query in queries:
        tokens = elmo.tokens(query)
        place = tokens.index(word)
        cosines = vectors @ unit(elmo.embed([tokens], layers="top")[0][place])  # (words,)
        print(marked(tokens, place))
        for best in np.argsort(-cosines)[:3]:
            print(f"    {cosines[best]:.2f}  {marked(*places[best])}")
    print(f"static {word}, the same in both sentences")
    print("   ", ", ".join(f"{other} {cosine:.2f}" for other, cosine in static.most_similar(word, topn=5)), "\n")
