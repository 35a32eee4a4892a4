"""The explorer in one file: the page's parts put together, with the answers it shows as JSON inside.

    write_page(session, "page.html", progress)

The file opens from a disk or in a notebook, and asks no server for anything. Its content security policy tells the
browser so: it allows the script and the style that stand in the file, by their digests, and nothing else.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from relmo.disk.outputs import atomic
from relmo.errors import SettingError
from relmo.explorer.align import AlignSession
from relmo.explorer.bundled import beside_asks, screen_asks
from relmo.explorer.session import Session, key
from relmo.explorer.truth import usual_features
from relmo.explorer.work import Worker
from relmo.settings.arguments import Progress

PARTS: tuple[str, ...] = ("data", "colour", "focus", "dom", "words", "picture", "present", "charts", "planes", "text")
PARTS += (
    "start",
    "proof",
    "read",
    "find",
    "cell",
    "memory",
    "experiments",
    "meaning",
    "equations",
    "compare",
    "heatmap",
    "align",
    "write",
    "trace",
    "layers",
    "app",
)
"""The modules of the page, each after those it imports."""
IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
LARGEST, IN_NOTEBOOK = 24_000_000, 6_000_000  # bytes of answers about a text's pages, in a file and in a frame
PLACE = "__BUNDLE__"


def shell() -> str:
    """The page with a place for its bundle."""
    folder = resources.files("relmo.explorer") / "static"
    parts = [(folder / f"{name}.js").read_text(encoding="utf-8") for name in PARTS]
    script = "\n".join(IMPORT.sub("", part).replace("\nexport ", "\n") for part in parts)
    style = (folder / "style.css").read_text(encoding="utf-8")
    page = (folder / "index.html").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest(script)}'; style-src 'sha256-{digest(style)}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    page = page.replace("<head>", f'<head>\n<meta http-equiv="Content-Security-Policy" content="{policy}">', 1)
    page = page.replace('<link rel="stylesheet" href="static/style.css">', f"<style>{style}</style>")
    inside = f'<script type="application/json" id="bundle">{PLACE}</script>'
    return page.replace(
        '<script type="module" src="static/app.js"></script>', f'{inside}<script type="module">{script}</script>'
    )


def digest(text: str) -> str:
    """The digest of a script or a style, as a policy names it."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def with_bundle(page: str, bundle: dict[str, Any]) -> str:
    """The page with its answers; a text that looks like markup stays a text."""
    data = json.dumps(bundle, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    before, after = page.split(PLACE, 1)
    return before + data + after


def make_bundle(
    session: Session | AlignSession, progress: Progress | None = None, *, find: bool = True, largest: int = LARGEST
) -> dict[str, Any]:
    """The answers that a page shows about a session's first text: what was found of features, how far back the loss
    reaches, and as many of the text's pages as fit. First come pages with the units that were found, then what was
    expected there, then all units' states, then all gates."""
    tell = progress or (lambda share: None)
    kept = BundledAnswers(session, largest)
    if isinstance(session, AlignSession):
        return _examples_bundle(session, kept, tell)
    if not session.recurrent:
        raise SettingError(f"{session.name} has no layers to look into: there is no page to keep; leave out --export")
    about, text = kept.ask("about"), session.first
    chosen = [about["opened"]]
    if find:
        kept.answers |= _found(session, text, tell)
        cards = kept.answers[f"job:find:{session.name}:{text}"]["found"]
        chosen = list(
            dict.fromkeys([*chosen, *(cell.unit for cell in session.named), *(card["unit"] for card in cards)])
        )
    for unit in chosen:
        kept.ask("overview", text=text, unit=unit)
        kept.ask("cell", text=text, unit=unit, event=session.event_of(unit))
    kept.ask("features", text=text)
    if find:
        _screens(session, kept)
    note = kept.fill(text, chosen, lambda share: tell(0.7 + 0.3 * share))
    tell(1.0)
    return {"model": session.name, "text": text, "note": note, "chosen": ",".join(chosen), "answers": kept.answers}


def _screens(session: Session, kept: "BundledAnswers") -> None:
    """Keeps what the screens of single steps show, of the model and of those that were taught the same."""
    for asked in screen_asks(session):
        if not kept.fits([asked]):
            return
    for each in session.alike():
        named = "of" in each
        other = session.beside(each["of"]) if named else session.with_texts(Session.open(each["model"], device="cpu"))
        more = BundledAnswers(other, kept.left)
        for asked in beside_asks(other, session.first):
            if not more.fits([asked]):
                return
        given = {"model": session.name, "of": each["of"]} if named else {"model": each["model"]}
        kept.take(more, given)


def _found(session: Session, text: str, tell: Progress) -> dict[str, Any]:
    """Results of long work about a text: those that were made ahead, else what was found of features, and how far back
    the loss reaches."""
    ahead = session.ahead() if text == session.ready_text else {}
    found = {name: answer for name, answer in ahead.items() if name != "cards"}
    if not found:
        worker, about = Worker(session), {"model": session.name, "text": text}
        given = about | {"features": usual_features(session, text), "ablate": "zero", "symbols": 20_000}
        found["find"] = worker.do("find", given, lambda share: tell(0.5 * share))
        shallow = about | {"lags": 60, "positions": 16}
        found["memory"] = worker.do("memory", shallow, lambda share: tell(0.5 + 0.2 * share))
    return {f"job:{name}:{session.name}:{text}": answer for name, answer in found.items()}


def _examples_bundle(session: AlignSession, kept: "BundledAnswers", tell: Progress) -> dict[str, Any]:
    """The answers that a page shows about a session's examples, the one it opens with first, as many as fit."""
    about = kept.ask("about")
    sources = list(dict.fromkeys([about["first"], *(pair["source"] for pair in about["pairs"])]))
    fitting = []
    for place, source in enumerate(sources):
        if kept.fits([("align", {"source": source})]):
            fitting.append(source)
        tell((place + 1) / len(sources))
    if not fitting:
        raise SettingError(f"not even one example fits into {kept.largest / 1e6:.0f} MB")
    about["pairs"] = [pair for pair in about["pairs"] if pair["source"] in fitting]
    about["first"] = fitting[0]
    note = f"{len(fitting)} of {len(sources)} examples"
    return {"model": session.name, "note": note, "answers": kept.answers}


class BundledAnswers:
    """The answers of a bundle, and how many more bytes of them it takes."""

    def __init__(self, session: Any, largest: int):
        self.session, self.largest, self.left = session, largest, largest
        self.answers: dict[str, Any] = {}

    def ask(self, what: str, **asked: Any) -> Any:
        """An answer that is kept whatever its size."""
        given = {name: str(value) for name, value in asked.items()}
        self.answers[key(self.session.name, what, given)] = answer = self.session.answer(what, given)
        return answer

    def take(self, more: "BundledAnswers", named: dict[str, str]) -> None:
        """Keeps the answers of a model beside, under the name by which the page asks for it."""
        for name, answer in more.answers.items():
            what, _, query = name.partition("?")
            asked = dict(parse_qsl(query, keep_blank_values=True)) | named
            self.answers[key(named["model"], what, {k: v for k, v in asked.items() if k != "model"})] = answer
        self.left = more.left

    def fits(self, wanted: Sequence[tuple[str, dict[str, Any]]]) -> bool:
        """Keeps these answers, all or none of them."""
        found = {}
        for what, asked in wanted:
            given = {name: str(value) for name, value in asked.items()}
            found[key(self.session.name, what, given)] = self.session.answer(what, given)
        size = len(json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode())
        if size > self.left:
            return False
        self.left -= size
        self.answers |= found
        return True

    def fill(self, text: str, chosen: list[str], tell: Progress) -> str:
        """Keeps a text's pages, the most wanted first. -> a sentence on what there was room for."""
        reader = self.session.reader(text)
        of, layers = len(reader), range(len(reader.recorder.stack.layers))
        carried = reader.recorder.stack.layers[0].states
        states = (carried, [name for name in reader.states if name not in carried])
        own = {"text": text, "units": ",".join(chosen)}
        true = list(dict.fromkeys(cell.feature for cell in self.session.named if cell.unit in chosen))
        tiers: list[Callable[[int], list[tuple[str, dict[str, Any]]]]] = [
            lambda page: [
                ("page", {"text": text, "page": page}),
                ("some", {**own, "page": page}),
                *(("truth", {"text": text, "page": page, "feature": feature}) for feature in true),
            ],
            lambda page: [("expected", {"text": text, "page": page})],
        ]
        for names in states:
            tiers.append(
                lambda page, names=names: [  # type: ignore[misc]
                    ("units", {"text": text, "page": page, "state": state, "layer": layer})
                    for state in names
                    for layer in layers
                ]
            )
        reached: list[int] = []
        for tier, wanted in enumerate(tiers):
            pages = 0
            while pages < (reached[0] if reached else of) and self.fits(wanted(pages)):
                pages += 1
                tell((tier + pages / of) / len(tiers))
            reached.append(pages)
        if not reached[0]:
            raise SettingError(f"not even one page of the text fits into {self.largest / 1e6:.0f} MB")
        return _told(of, reached, self.largest)


def _told(of: int, reached: list[int], largest: int) -> str:
    """A sentence on how many of a text's pages are in a bundle, and how many of those with everything."""
    pages, expected, states, gates = reached
    limit = f"as many as fit into {largest / 1e6:.0f} MB"
    first = f"{of} of {of} pages" if pages == of else f"the first {pages} of {of} pages, {limit}"
    if min(expected, states, gates) == pages:
        return f"{first}, with all units"
    more = f"{first}; with all units' states {_some(states, pages)}, with all gates {_some(gates, pages)}"
    more += "" if expected == pages else f", with what was expected {_some(expected, pages)}"
    return more + ("" if pages < of else f", {limit}")


def _some(reached: int, of: int) -> str:
    return "on all" if reached == of else f"on the first {reached}" if reached else "on none"


def write_page(session: Session | AlignSession, path: Path, progress: Progress | None = None) -> str:
    """Writes an exported page, whole or not at all. -> a sentence on how much of the text is in it."""
    bundle = make_bundle(session, progress)
    with atomic(path) as temporary:
        temporary.write_text(with_bundle(shell(), bundle), encoding="utf-8")
    return bundle["note"]


class Frame:
    """The explorer in a notebook: shows itself as a frame with everything inside."""

    def __init__(self, page: str, height: int = 640):
        self.page, self.height = page, height

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{html.escape(self.page, quote=True)}" sandbox="allow-scripts allow-downloads" '
            f'style="width:100%;height:{self.height}px;border:1px solid #ccc" title="relmo explore"></iframe>'
        )


def frame(session: Session | AlignSession, *, find: bool = False, height: int = 640) -> Frame:
    """A session for a notebook. What takes long is left out, except where `find` asks for it."""
    return Frame(with_bundle(shell(), make_bundle(session, find=find, largest=IN_NOTEBOOK)), height)
