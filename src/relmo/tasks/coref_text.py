"""Documents with their clusters as text in brackets, as an HTML page and as columns of CoNLL-2012.

[Anna]1 saw [[her]1 brother]2.
"""

import html
from collections import defaultdict
from collections.abc import Iterator, Sequence
from colorsys import hls_to_rgb
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from relmo.tasks.results import (
    MarkedPart,
    MarkedSpan,
    TextSpan,
    TokenizedText,
    render_html,
    shorten,
    split_at_spans,
)
from relmo.text.readers.coref import CorefDocument, Place
from relmo.text.tokenize import Token


@dataclass(frozen=True)
class Mention(TextSpan):
    """Mention of an entity, and the probability of its antecedent; None if it has none."""

    probability: float | None = None


@dataclass(frozen=True, repr=False)
class ResolvedText(TokenizedText):
    """Document with the mentions of each entity.

    text        the given text; if lists of words were given, the words joined by spaces, with a line per sentence
    tokens      words with their offsets in the text
    sentences   number of words of each sentence
    """

    name: str
    text: str
    tokens: list[Token]
    sentences: list[int]
    clusters: list[list[Mention]]

    @property
    def places(self) -> list[list[Place]]:
        """Clusters as (first word, end) of each mention."""
        return [[(mention.start_word, mention.end_word) for mention in cluster] for cluster in self.clusters]

    def parts(self) -> Iterator[MarkedPart]:
        """Yield the parts of the text and the begins and ends of mentions, numbered by cluster from 1."""
        marks = self._marks()
        for part in split_at_spans(self.text, [(mark.start, mark.end) for mark in marks]):
            yield part if part.kind == "text" else part._replace(number=int(marks[part.number].label))

    def _marks(self) -> list[MarkedSpan]:
        return [
            MarkedSpan(mention.start, mention.end, str(number), _hue(number))
            for number, cluster in enumerate(self.clusters, start=1)
            for mention in cluster
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the document in the format of e2e-coref, and the offsets of each mention."""
        words = iter(self.words)
        return {
            "doc_key": self.name,
            "text": self.text,
            "sentences": [list(islice(words, length)) for length in self.sentences],
            "clusters": [[[start, end - 1] for start, end in cluster] for cluster in self.places],
            "mentions": [[asdict(mention) for mention in cluster] for cluster in self.clusters],
        }

    def __repr__(self) -> str:
        clusters = "; ".join(" = ".join(shorten(mention.text, 30) for mention in c) for c in self.clusters)
        return f"ResolvedText({shorten(clusters or self.text, 160)})"

    def _repr_html_(self) -> str:
        return render_html(self.text, self._marks())

    def as_text(self) -> str:
        """Return the text with mentions in brackets, followed by the numbers of their clusters; then each cluster."""
        return "".join(text for text, _ in self.pieces())

    def pieces(self) -> Iterator[tuple[str, str]]:
        """Yield the pieces of `as_text`, each with the name of its colour or an empty string."""
        colours = [""]
        for part in self.parts():
            if part.kind == "text":
                yield part.text, colours[-1]
            elif part.kind == "begin":
                colours.append(_terminal_colour(part.number))
                yield "[", colours[-1]
            else:
                yield f"]{part.number}", colours.pop()
        yield "\n\n" if self.clusters else "\n", ""
        for number, cluster in enumerate(self.clusters, start=1):
            mentions = " | ".join(" ".join(mention.text.split()) for mention in cluster)
            yield f"{number}: {mentions}", _terminal_colour(number)
            yield "\n", ""


def _hue(cluster: int) -> int:
    return round(cluster * 137.508) % 360  # the golden angle: hues of neighbours are far apart


def _terminal_colour(cluster: int) -> str:
    # black on a background that is light enough to read on, and saturated enough for terminals with few colours
    red, green, blue = (round(255 * part) for part in hls_to_rgb(_hue(cluster) / 360, 0.65, 0.75))
    return f"#000000 on #{red:02x}{green:02x}{blue:02x}"


def conll(document: CorefDocument, clusters: Sequence[Sequence[Place]]) -> str:
    """Return a document in the format of CoNLL-2012 with these clusters. Other columns are as they were read; unknown
    ones are -."""
    marks: dict[int, list[str]] = defaultdict(list)
    spans = [(start, end - 1, number) for number, cluster in enumerate(clusters) for start, end in cluster]
    for start, last, number in sorted(spans, key=lambda span: (span[0], -span[1])):
        marks[start].append(f"({number})" if start == last else f"({number}")
    for start, last, number in sorted(spans, reverse=True):
        if start != last:
            marks[last].append(f"{number})")
    part = document.part.zfill(3)
    name = "".join(document.name.split()) or "-"
    lines, place = [f"#begin document ({name}); part {part}"], 0
    for words in document.sentences:
        for number, word in enumerate(words):
            speaker = "".join(document.speakers[place].split()) if document.speakers else ""
            number_text = str(int(part)) if part.isdecimal() else part
            defaults = [name, number_text, str(number), "_".join(word.split()), *"-----", speaker or "-", "*"]
            columns = document.columns[place] if document.columns else defaults
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
const highlightCluster = event => {{
  const mention = event.target.closest("[data-cluster]");
  for (const element of document.querySelectorAll(".chosen")) element.classList.remove("chosen");
  if (!mention) return;
  const cluster = mention.closest("section").querySelectorAll(`[data-cluster="${{mention.dataset.cluster}}"]`);
  for (const element of cluster) element.classList.add("chosen");
}};
document.addEventListener("mouseover", highlightCluster);
</script></body></html>
"""


def page(documents: Sequence[ResolvedText]) -> str:
    """Return all documents as one self-contained page; hovering over a mention highlights its cluster."""
    sections = []
    for document in documents:
        marked = []
        for part in document.parts():
            if part.kind == "text":
                marked.append(html.escape(part.text))
            elif part.kind == "begin":
                marked.append(f'<span data-cluster="{part.number}" style="--hue: {_hue(part.number)}">')
            else:
                marked.append(f"<sub>{part.number}</sub></span>")
        rows = []
        for number, cluster in enumerate(document.clusters, start=1):
            mentions = html.escape(" | ".join(mention.text for mention in cluster))
            rows.append(f'<li><span data-cluster="{number}" style="--hue: {_hue(number)}">{mentions}</span></li>')
        title = f"<h2>{html.escape(document.name)}</h2>" if document.name else ""
        sections.append(f"<section>{title}<p>{''.join(marked)}</p><ol>{''.join(rows)}</ol></section>")
    return PAGE.format(documents="\n".join(sections))
