"""Documents with their clusters, to be read: in brackets, as a page in a browser, as columns of CoNLL-2012.

[Anna]1 saw [[her]1 brother]2.
"""

import html
from collections import defaultdict
from collections.abc import Iterator, Sequence
from colorsys import hls_to_rgb
from dataclasses import dataclass
from typing import Literal, NamedTuple

from relmo.text.readers.coref import CorefDocument, Place
from relmo.text.tokenize import Token


class Mention(NamedTuple):
    """A stretch of words: the first, the one behind the last, and its text."""

    start: int
    end: int
    text: str


class MarkedPart(NamedTuple):
    """A part of a marked text: characters, or where a mention of a cluster, counted from 1, begins or ends."""

    kind: Literal["text", "begin", "end"]
    text: str
    cluster: int = 0


@dataclass(frozen=True)
class ResolvedText:
    """A document, its words and where they stand in its text, and the mentions of each thing."""

    name: str
    text: str
    tokens: list[Token]
    clusters: list[list[Mention]]

    @property
    def places(self) -> list[list[Place]]:
        """The clusters as words alone."""
        return [[(mention.start, mention.end) for mention in cluster] for cluster in self.clusters]

    def parts(self) -> Iterator[MarkedPart]:
        """The text with the beginnings and ends of mentions. Where several begin, the longest is first; where several
        end, the one that began last."""
        begins: dict[int, list[tuple[int, int]]] = defaultdict(list)
        ends: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, cluster in enumerate(self.clusters, start=1):
            for mention in cluster:
                first, last = self.tokens[mention.start].start, self.tokens[mention.end - 1].end
                begins[first].append((-last, number))
                ends[last].append((-first, -number))
        before = 0
        for place in sorted({*begins, *ends}):
            yield MarkedPart("text", self.text[before:place])
            yield from (MarkedPart("end", "", -number) for _, number in sorted(ends[place]))
            yield from (MarkedPart("begin", "", number) for _, number in sorted(begins[place]))
            before = place
        yield MarkedPart("text", self.text[before:].rstrip())

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
                colours.append(_colour(part.cluster))
                yield "[", colours[-1]
            else:
                yield f"]{part.cluster}", colours.pop()
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
            marked.append(f'<span data-cluster="{part.cluster}" style="--hue: {_hue(part.cluster)}">')
        else:
            marked.append(f"<sub>{part.cluster}</sub></span>")
    rows = [
        f'<li><span data-cluster="{number}" style="--hue: {_hue(number)}">'
        + html.escape(" | ".join(mention.text for mention in cluster))
        + "</span></li>"
        for number, cluster in enumerate(resolved.clusters, start=1)
    ]
    title = f"<h2>{html.escape(resolved.name)}</h2>" if resolved.name else ""
    return f"<section>{title}<p>{''.join(marked)}</p><ol>{''.join(rows)}</ol></section>"
