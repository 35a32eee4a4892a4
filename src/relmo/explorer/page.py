"""The explorer in one file: the page's scripts and style, with the answers it shows embedded as JSON.

    write_page(session, "page.html", progress)

The file works from disk or in a notebook, without a server. Its content security policy allows the embedded script and
style, by their digests, and nothing else.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from relmo.disk.outputs import atomic
from relmo.errors import SettingError
from relmo.explorer.align import AlignSession
from relmo.explorer.endpoints import get_event
from relmo.explorer.session import Session, answer_key
from relmo.explorer.work import Worker
from relmo.settings.fields import Progress

PARTS: tuple[str, ...] = ("data", "colour", "focus", "dom", "words", "picture", "present", "charts", "planes", "text")
PARTS += ("start", "proof", "read", "find", "cell", "memory", "experiments", "meaning", "equations", "compare")
PARTS += ("heatmap", "align", "write", "trace", "layers", "app")
"""Modules of the page, each after those it imports."""
IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
MAX_FILE_BYTES, MAX_FRAME_BYTES = 24_000_000, 6_000_000  # of the answers about pages of the text
PLACEHOLDER = "__BUNDLE__"
NUM_STEPS = 24  # symbols whose equations are included
MAX_STEP_UNITS = 4  # units per layer up to which all have their equations included
NUM_DRAWN = 16  # symbols that can be drawn in Write
SAMPLING = {"temperature": "1", "top_k": "0", "top_p": "0", "seed": "0"}
BEAM = {"beams": "3", "deep": "8"}

Request = tuple[str, dict[str, Any]]


def shell() -> str:
    """Return the page with a placeholder for its bundle."""
    folder = resources.files("relmo.explorer") / "static"
    parts = [(folder / f"{name}.js").read_text(encoding="utf-8") for name in PARTS]
    script = "\n".join(IMPORT.sub("", part).replace("\nexport ", "\n") for part in parts)
    style = (folder / "style.css").read_text(encoding="utf-8")
    page = (folder / "index.html").read_text(encoding="utf-8")
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, style)]
    policy = (
        f"default-src 'none'; script-src 'sha256-{digests[0]}'; style-src 'sha256-{digests[1]}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    page = page.replace("<head>", f'<head>\n<meta http-equiv="Content-Security-Policy" content="{policy}">', 1)
    page = page.replace('<link rel="stylesheet" href="static/style.css">', f"<style>{style}</style>")
    bundle = f'<script type="application/json" id="bundle">{PLACEHOLDER}</script>'
    scripts = f'{bundle}<script type="module">{script}</script>'
    return page.replace('<script type="module" src="static/app.js"></script>', scripts)


def with_bundle(page: str, bundle: dict[str, Any]) -> str:
    """Return the page with its answers; text that looks like markup stays text."""
    content = json.dumps(bundle, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    before, after = page.split(PLACEHOLDER, 1)
    return before + content + after


def make_bundle(
    session: Session | AlignSession,
    progress: Progress | None = None,
    *,
    find: bool = True,
    max_bytes: int = MAX_FILE_BYTES,
) -> dict[str, Any]:
    """Return the answers that a page shows: of a sequence-to-sequence model, as many examples as fit, the initial one
    first; else about the initial text, with as many pages as fit, and with `find` results of the other views."""
    report = progress or (lambda share: None)
    bundle = AnswerBundle(session, max_bytes)
    if isinstance(session, AlignSession):
        about, included = bundle.add("about"), []
        sources = list(dict.fromkeys([about["first"], *(pair["source"] for pair in about["pairs"])]))
        for index, source in enumerate(sources):
            if bundle.add_if_fits([("align", {"source": source})]):
                included.append(source)
            report((index + 1) / len(sources))
        if not included:
            raise SettingError(f"No example fits into {max_bytes / 1e6:.0f} MB.")
        about["pairs"] = [pair for pair in about["pairs"] if pair["source"] in included]
        about["first"] = included[0]
        note = f"{len(included)} of {len(sources)} examples"
        return {"model": session.name, "note": note, "answers": bundle.answers}
    if not session.model.is_recurrent:
        raise SettingError(f"{session.name} has no recurrent layers and cannot be exported; leave out --export.")
    about, text = bundle.add("about"), session.texts.initial
    units = [about["opened"]]
    if find:
        precomputed = session.precomputed() if text == session.precomputed_text else {}
        results = {name: answer for name, answer in precomputed.items() if name != "cards"}
        if not results:
            worker, body = Worker(session), {"model": session.name, "text": text}
            job = body | {"features": session.suitable_features(text), "ablate": "zero", "symbols": 20_000}
            results["find"] = worker.run("find", job, lambda share: report(0.5 * share))
            job = body | {"lags": 60, "positions": 16}
            results["memory"] = worker.run("memory", job, lambda share: report(0.5 + 0.2 * share))
        bundle.answers |= {f"job:{name}:{session.name}:{text}": answer for name, answer in results.items()}
        cards = results["find"]["found"]
        units = list(dict.fromkeys([*units, *(cell.unit for cell in session.named), *(c["unit"] for c in cards)]))
    for unit in units:
        bundle.add("overview", text=text, unit=unit)
        bundle.add("cell", text=text, unit=unit, event=get_event(session, unit))
    bundle.add("features", text=text)
    if find:
        _add_views(session, bundle)
    note = bundle.add_pages(text, units, lambda share: report(0.7 + 0.3 * share))
    report(1.0)
    return {"model": session.name, "text": text, "note": note, "chosen": ",".join(units), "answers": bundle.answers}


def _add_views(session: Session, bundle: "AnswerBundle") -> None:
    """Add what Equations, Write, Trace and Layers request, of the model and of its peers, as far as it fits."""
    if not all(bundle.add_if_fits([request]) for request in _view_requests(session)):
        return
    text = session.texts.initial
    for peer in session.peers():
        if "of" in peer:
            other, names = session.companion(peer["of"]), {"model": session.name, "of": peer["of"]}
        else:
            other, names = Session.open(peer["model"], device="cpu"), {"model": peer["model"]}
            other.texts = session.texts
        peer_bundle = AnswerBundle(other, bundle.bytes_left, names)
        memory = other.answer("about", {})["memory"]
        requests = [("about", {}), *_step_requests(other, text)]
        requests.append(("units", {"text": text, "page": 0, "state": memory, "layer": 0}))
        if not all(peer_bundle.add_if_fits([request]) for request in requests):
            return
        bundle.answers |= peer_bundle.answers
        bundle.bytes_left = peer_bundle.bytes_left


def _view_requests(session: Session) -> Iterator[Request]:
    yield from _step_requests(session, session.texts.initial)
    about = session.answer("about", {})
    if not session.model.can_generate:
        yield "layers", {}
        for unit in about["number_units"]:
            yield "conditions", {"unit": unit}
        return
    prompt, taken = about["prompt"], list[str]()
    yield "beam", {"prompt": prompt, "taken": "", **BEAM}
    for _ in range(NUM_DRAWN):
        params = {"prompt": prompt, "taken": ",".join(taken), **SAMPLING}
        yield "next", params
        drawn = session.answer("next", params)["drawn"]
        if drawn is None:
            return
        taken.append(str(drawn))


def _step_requests(session: Session, text: str) -> Iterator[Request]:
    reader, initial = session.reader(text), session.initial_unit
    layer, _, _ = initial.rpartition(".")
    num_units = reader.states[initial[0]] // reader.recorder.stack.directions
    units = [f"{layer}.{index}" for index in range(num_units)] if num_units <= MAX_STEP_UNITS else [initial]
    for position in range(min(NUM_STEPS, len(reader.document))):
        for unit in units:
            yield "step", {"text": text, "at": position, "unit": unit}


class AnswerBundle:
    """Answers of a page by request, up to a size; `names` are the parameters by which the page requests the session."""

    def __init__(self, session: Any, max_bytes: int, names: dict[str, str] | None = None):
        self.session, self.max_bytes, self.bytes_left = session, max_bytes, max_bytes
        self.names = names or {"model": session.name}
        self.answers: dict[str, Any] = {}

    def _request(self, endpoint: str, params: dict[str, Any]) -> tuple[str, Any]:
        query = {name: str(parameter) for name, parameter in params.items()}
        key = answer_key(self.names["model"], endpoint, query | self.names)
        return key, self.session.answer(endpoint, query)

    def add(self, endpoint: str, **params: Any) -> Any:
        """Add an answer regardless of its size, and return it."""
        key, answer = self._request(endpoint, params)
        self.answers[key] = answer
        return answer

    def add_if_fits(self, requests: Iterable[Request]) -> bool:
        """Add the answers to all of these requests if they fit; return whether they do."""
        answers = dict(self._request(endpoint, params) for endpoint, params in requests)
        size = len(json.dumps(answers, ensure_ascii=False, separators=(",", ":")).encode())
        if size > self.bytes_left:
            return False
        self.bytes_left -= size
        self.answers |= answers
        return True

    def add_pages(self, text: str, units: list[str], progress: Progress) -> str:
        """Add a text's pages with these units, predictions, all states, all gates; return a note on how many fit."""
        reader = self.session.reader(text)
        num_pages, layers = len(reader), reader.recorder.stack.layers
        carried = layers[0].cell.unit_states
        gates = [name for name in reader.states if name not in carried]
        features = dict.fromkeys(cell.feature for cell in self.session.named if cell.unit in units)
        tiers: list[list[Request]] = [  # requests about one page, without its index
            [("page", {}), ("some", {"units": ",".join(units)}), *(("truth", {"feature": name}) for name in features)],
            [("expected", {})],
            *(
                [("units", {"state": state, "layer": layer}) for state in states for layer in range(len(layers))]
                for states in (carried, gates)
            ),
        ]
        counts: list[int] = []
        for index, tier in enumerate(tiers):
            count = 0
            while count < (counts[0] if counts else num_pages):
                place = {"text": text, "page": count}
                if not self.add_if_fits((endpoint, place | params) for endpoint, params in tier):
                    break
                count += 1
                progress((index + count / num_pages) / len(tiers))
            counts.append(count)
        pages = counts[0]
        if not pages:
            raise SettingError(f"Not a single page of the text fits into {self.max_bytes / 1e6:.0f} MB.")
        limit = f"limited to {self.max_bytes / 1e6:.0f} MB"
        note = f"{pages} of {pages} pages" if pages == num_pages else f"the first {pages} of {num_pages} pages, {limit}"
        if min(counts) == pages:
            return f"{note}, with all units"
        predictions, states, gate_pages = (
            "on all" if count == pages else f"on the first {count}" if count else "on none" for count in counts[1:]
        )
        note += f"; all units' states {states}, all gates {gate_pages}"
        note += "" if counts[1] == pages else f", predictions {predictions}"
        return note + ("" if pages < num_pages else f", {limit}")


def write_page(session: Session | AlignSession, path: Path, progress: Progress | None = None) -> str:
    """Write an exported page atomically; return a sentence on how much of the text is in it."""
    bundle = make_bundle(session, progress)
    with atomic(path) as temporary:
        temporary.write_text(with_bundle(shell(), bundle), encoding="utf-8")
    return bundle["note"]


class Frame(NamedTuple):
    """The explorer in a notebook: an iframe with everything embedded."""

    page: str
    height: int = 640

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{html.escape(self.page, quote=True)}" sandbox="allow-scripts allow-downloads" '
            f'style="width:100%;height:{self.height}px;border:1px solid #ccc" title="relmo explore"></iframe>'
        )


def frame(session: Session | AlignSession, *, find: bool = False, height: int = 640) -> Frame:
    """Return a session as a frame for a notebook; with `find`, with the results of long computations."""
    return Frame(with_bundle(shell(), make_bundle(session, find=find, max_bytes=MAX_FRAME_BYTES)), height)
