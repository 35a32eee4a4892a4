"""Documents with their clusters, to be read: in brackets, as a page in a browser, as columns of CoNLL-2012.

[Anna]1 saw [[her]1 brother]2.
"""

import html
from collections import defaultdict
from collections.abc import Iterator, Sequence
from colorsys import hls_to_rgb
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from relmo.tasks.results import MarkedPart, MarkedSpan, TextSpan, marked_html, marked_parts, shortened
from relmo.text.readers.coref import CorefDocument, Place
from relmo.text.tokenize import Token


@dataclass(frozen=True)
class Mention(TextSpan):
    """A stretch of words that is of something, and the probability of the antecedent that it was linked to; None where
    it has none before it."""

    probability: float | None = None


@dataclass(frozen=True, repr=False)
class ResolvedText:
    """A document, its words and where they stand in its text, and the mentions of each thing.

    text        what was given; where that was lists of words, these with a space between them, a sentence a line
    sentences   how many words each sentence has
    """

    name: str
    text: str
    tokens: list[Token]
    sentences: list[int]
    clusters: list[list[Mention]]

    @property
    def words(self) -> list[str]:
        """The words alone."""
        return [token.text for token in self.tokens]

    @property
    def places(self) -> list[list[Place]]:
        """The clusters as words alone."""
        return [[(mention.start_word, mention.end_word) for mention in cluster] for cluster in self.clusters]

    def parts(self) -> Iterator[MarkedPart]:
        """The text with the beginnings and ends of mentions; the number of a part is its cluster's, from 1."""
        marks = self._marks()
        for part in marked_parts(self.text, [(mark.start, mark.end) for mark in marks]):
            yield part if part.kind == "text" else part._replace(number=int(marks[part.number].label))

    def _marks(self) -> list[MarkedSpan]:
        return [
            MarkedSpan(mention.start, mention.end, str(number), _hue(number))
            for number, cluster in enumerate(self.clusters, start=1)
            for mention in cluster
        ]

    def to_dict(self) -> dict[str, Any]:
        """The document with its clusters as e2e-coref's JSON has them, and each mention's place in the text."""
        words = iter(self.words)
        return {
            "doc_key": self.name,
            "text": self.text,
            "sentences": [list(islice(words, length)) for length in self.sentences],
            "clusters": [[[start, end - 1] for start, end in cluster] for cluster in self.places],
            "mentions": [[asdict(mention) for mention in cluster] for cluster in self.clusters],
        }

    def __repr__(self) -> str:
        """The clusters."""
        found = "; ".join(" = ".join(shortened(each.text, 30) for each in cluster) for cluster in self.clusters)
        return f"ResolvedText({shortened(found or self.text, 160)})"

    def _repr_html_(self) -> str:
        """For a notebook: the text with coloured mentions, each with the number of its cluster."""
        return marked_html(self.text, self._marks())

    def as_text(self) -> str:
        """The text with mentions in brackets and their clusters' numbers behind, then a line for each cluster."""
        return "".join(text for text, _ in self.pieces())

    def pieces(self) -> Iterator[tuple[str, str]]:
        """The same in pieces, each with the name of its colour; none where it has no colour."""
        colours = [""]
        for part in self.parts():
            if part.kind == "text":
                yield part.text, colours[-1]
            elif part.kind == "begin":
                colours.append(_colour(part.number))
                yield "[", colours[-1]
            else:
                yield f"]{part.number}", colours.pop()
        yield "\n\n" if self.clusters else "\n", ""
        for number, cluster in enumerate(self.clusters, start=1):
            yield f"{number}: {' | '.join(' '.join(mention.text.split()) for mention in cluster)}", _colour(number)
            yield "\n", ""


def _hue(cluster: int) -> int:
    """The colour of a cluster, in degrees: those of neighbours are far apart."""
    return round(cluster * 137.508) % 360


def _colour(cluster: int) -> str:
    """Black on a cluster's colour. It is light enough to be read on, and strong enough to be told from others on a
    terminal that has few colours and takes the nearest."""
    red, green, blue = (round(255 * part) for part in hls_to_rgb(_hue(cluster) / 360, 0.65, 0.75))
    return f"#000000 on #{red:02x}{green:02x}{blue:02x}"


def conll(document: CorefDocument, clusters: Sequence[Sequence[Place]]) -> str:
    """A document as CoNLL-2012 has it, with these clusters. The other columns are as they were read; those that nobody
    knows are -."""
    marks: dict[int, list[str]] = defaultdict(list)
    placed = [(start, end - 1, number) for number, cluster in enumerate(clusters) for start, end in cluster]
    for start, last, number in sorted(placed, key=lambda each: (each[0], -each[1])):
        marks[start].append(f"({number})" if start == last else f"({number}")
    for start, last, number in sorted(placed, reverse=True):
        if start != last:
            marks[last].append(f"{number})")
    part = document.part.zfill(3)
    name = "".join(document.name.split()) or "-"
    lines, place = [f"#begin document ({name}); part {part}"], 0
    for words in document.sentences:
        for number, word in enumerate(words):
            speaker = "".join(document.speakers[place].split()) if document.speakers else ""
            own = [
                name,
                str(int(part)) if part.isdecimal() else part,
                str(number),
                "_".join(word.split()),
                *"-----",
                speaker or "-",
                "*",
            ]
            columns = document.columns[place] if document.columns else own
            lines.append("\t".join([*columns, "|".join(marks[place]) or "-"]))
            place += 1
        lines.append("")
    return "\n".join([*lines, "#end document"])


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Coreference</title><style>
body {{ font: 17px/1.9 Georgia, serif; max-width: 46em; margin: 2em auto; padding: 0 1em; color: #222 }}
p {{ white-space: pre-wrap }}
[data-cluster] {{ background: hsl(var(--hue) 75% 88%); border-bottom: 2px solid hsl(var(--hue) 60% 45%);
  border-radius: 3px; padding: 1px 2px }}
[data-cluster] sub {{ font: 11px sans-serif; color: hsl(var(--hue) 70% 28%) }}
.chosen {{ background: hsl(var(--hue) 75% 70%) }}
li {{ margin: 0.3em 0 }}
</style></head><body>
{documents}
<script>
const same = event => {{
  const found = event.target.closest("[data-cluster]");
  for (const old of document.querySelectorAll(".chosen")) old.classList.remove("chosen");
  if (!found) return;
  const own = found.closest("section").querySelectorAll(`[data-cluster="${{found.dataset.cluster}}"]`);
  for (const each of own) each.classList.add("chosen");
}};
document.addEventListener("mouseover", same);
</script></body></html>
"""


def page(resolved: Sequence[ResolvedText]) -> str:
    """All documents as one page that needs nothing else; the mouse over a mention shows all of its cluster."""
    return PAGE.format(documents="\n".join(map(_section, resolved)))


def _section(resolved: ResolvedText) -> str:
    """A document: its text with coloured mentions, and a list of its clusters."""
    marked = []
    for part in resolved.parts():
        if part.kind == "text":
            marked.append(html.escape(part.text))
        elif part.kind == "begin":
            marked.append(f'<span data-cluster="{part.number}" style="--hue: {_hue(part.number)}">')
        else:
            marked.append(f"<sub>{part.number}</sub></span>")
    rows = [
        f'<li><span data-cluster="{number}" style="--hue: {_hue(number)}">'
        + html.escape(" | ".join(mention.text for mention in cluster))
        + "</span></li>"
        for number, cluster in enumerate(resolved.clusters, start=1)
    ]
    title = f"<h2>{html.escape(resolved.name)}</h2>" if resolved.name else ""
    return f"<section>{title}<p>{''.join(marked)}</p><ol>{''.join(rows)}</ol></section>"
