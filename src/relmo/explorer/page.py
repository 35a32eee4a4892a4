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
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from relmo.disk.outputs import atomic
from relmo.errors import SettingError
from relmo.explorer.align import AlignSession
from relmo.explorer.endpoints import get_event
from relmo.explorer.features import suitable_features
from relmo.explorer.session import Session, answer_key
from relmo.explorer.work import Worker
from relmo.models.bilm import BiLM
from relmo.settings.arguments import Progress

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

Requests = Iterator[tuple[str, dict[str, Any]]]


def shell() -> str:
    """Return the page with a placeholder for its bundle."""
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
    bundle = f'<script type="application/json" id="bundle">{PLACEHOLDER}</script>'
    scripts = f'{bundle}<script type="module">{script}</script>'
    return page.replace('<script type="module" src="static/app.js"></script>', scripts)


def digest(text: str) -> str:
    """Return the digest of a script or style, as a content security policy has it."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


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
    """Return the answers that a page shows about a session's initial text, with as many pages of it as fit.

    With `find`, results of the views Find, Memory, Equations, Write, Trace and Layers are included.
    """
    report = progress or (lambda share: None)
    bundle = AnswerBundle(session, max_bytes)
    if isinstance(session, AlignSession):
        return _bundle_examples(session, bundle, report)
    if not session.recurrent:
        raise SettingError(f"{session.name} has no recurrent layers and cannot be exported; leave out --export.")
    about, text = bundle.add("about"), session.texts.initial
    units = [about["opened"]]
    if find:
        bundle.answers |= _get_results(session, text, report)
        cards = bundle.answers[f"job:find:{session.name}:{text}"]["found"]
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


def _get_results(session: Session, text: str, progress: Progress) -> dict[str, Any]:
    """Return the results of jobs: precomputed ones, else cells and gradients computed now."""
    precomputed = session.precomputed() if text == session.precomputed_text else {}
    results = {name: answer for name, answer in precomputed.items() if name != "cards"}
    if not results:
        worker, body = Worker(session), {"model": session.name, "text": text}
        find = body | {"features": suitable_features(session, text), "ablate": "zero", "symbols": 20_000}
        results["find"] = worker.run("find", find, lambda share: progress(0.5 * share))
        memory = body | {"lags": 60, "positions": 16}
        results["memory"] = worker.run("memory", memory, lambda share: progress(0.5 + 0.2 * share))
    return {f"job:{name}:{session.name}:{text}": answer for name, answer in results.items()}


def _add_views(session: Session, bundle: "AnswerBundle") -> None:
    """Add what Equations, Write, Trace and Layers request, of the model and of its peers, as far as it fits."""
    if not bundle.add_while_fits(_view_requests(session)):
        return
    text = session.texts.initial
    for peer in session.peers():
        if "of" in peer:
            other, names = session.companion(peer["of"]), {"model": session.name, "of": peer["of"]}
        else:
            other, names = Session.open(peer["model"], device="cpu"), {"model": peer["model"]}
            other.texts = session.texts
        peer_bundle = AnswerBundle(other, bundle.bytes_left)
        memory = other.answer("about", {})["memory"]
        requests = [("about", {}), *_step_requests(other, text)]
        requests.append(("units", {"text": text, "page": 0, "state": memory, "layer": 0}))
        if not peer_bundle.add_while_fits(requests):
            return
        bundle.merge(peer_bundle, names)


def _view_requests(session: Session) -> Requests:
    yield from _step_requests(session, session.texts.initial)
    about = session.answer("about", {})
    if isinstance(session.model, BiLM):
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


def _step_requests(session: Session, text: str) -> Requests:
    reader, initial = session.reader(text), session.initial_unit
    layer, _, _ = initial.rpartition(".")
    num_units = reader.states[initial[0]] // reader.recorder.stack.directions
    units = [f"{layer}.{index}" for index in range(num_units)] if num_units <= MAX_STEP_UNITS else [initial]
    for position in range(min(NUM_STEPS, len(reader.document))):
        for unit in units:
            yield "step", {"text": text, "at": position, "unit": unit}


def _bundle_examples(session: AlignSession, bundle: "AnswerBundle", progress: Progress) -> dict[str, Any]:
    """Return the answers about a session's examples, the initial one first, as many as fit."""
    about = bundle.add("about")
    sources = list(dict.fromkeys([about["first"], *(pair["source"] for pair in about["pairs"])]))
    included = []
    for index, source in enumerate(sources):
        if bundle.add_if_fits([("align", {"source": source})]):
            included.append(source)
        progress((index + 1) / len(sources))
    if not included:
        raise SettingError(f"No example fits into {bundle.max_bytes / 1e6:.0f} MB.")
    about["pairs"] = [pair for pair in about["pairs"] if pair["source"] in included]
    about["first"] = included[0]
    note = f"{len(included)} of {len(sources)} examples"
    return {"model": session.name, "note": note, "answers": bundle.answers}


class AnswerBundle:
    """Answers of a page by request, up to a size."""

    def __init__(self, session: Any, max_bytes: int):
        self.session, self.max_bytes, self.bytes_left = session, max_bytes, max_bytes
        self.answers: dict[str, Any] = {}

    def _request(self, endpoint: str, params: dict[str, Any]) -> tuple[str, Any]:
        query = {name: str(parameter) for name, parameter in params.items()}
        return answer_key(self.session.name, endpoint, query), self.session.answer(endpoint, query)

    def add(self, endpoint: str, **params: Any) -> Any:
        """Add an answer regardless of its size, and return it."""
        key, answer = self._request(endpoint, params)
        self.answers[key] = answer
        return answer

    def add_if_fits(self, requests: Sequence[tuple[str, dict[str, Any]]]) -> bool:
        """Add the answers to all of these requests if they fit; return whether they do."""
        answers = dict(self._request(endpoint, params) for endpoint, params in requests)
        size = len(json.dumps(answers, ensure_ascii=False, separators=(",", ":")).encode())
        if size > self.bytes_left:
            return False
        self.bytes_left -= size
        self.answers |= answers
        return True

    def add_while_fits(self, requests: Iterable[tuple[str, dict[str, Any]]]) -> bool:
        """Add answers one by one until one does not fit; return whether all do."""
        return all(self.add_if_fits([request]) for request in requests)

    def merge(self, other: "AnswerBundle", names: dict[str, str]) -> None:
        """Add the answers of a peer under the names by which the page requests it."""
        for key, answer in other.answers.items():
            endpoint, _, query = key.partition("?")
            params = dict(parse_qsl(query, keep_blank_values=True)) | names
            params.pop("model")
            self.answers[answer_key(names["model"], endpoint, params)] = answer
        self.bytes_left = other.bytes_left

    def add_pages(self, text: str, units: list[str], progress: Progress) -> str:
        """Add a text's pages and return a sentence on how many fit.

        The order is: pages with the given units, predictions, all units' states, all gates.
        """
        reader = self.session.reader(text)
        num_pages, num_layers = len(reader), len(reader.recorder.stack.layers)
        carried = reader.recorder.stack.layers[0].states
        gates = [name for name in reader.states if name not in carried]
        features = list(dict.fromkeys(cell.feature for cell in self.session.named if cell.unit in units))

        def request_page(page: int) -> list[tuple[str, dict[str, Any]]]:
            place = {"text": text, "page": page}
            truths = [("truth", {**place, "feature": feature}) for feature in features]
            return [("page", place), ("some", {**place, "units": ",".join(units)}), *truths]

        def request_states(names: Sequence[str]) -> Callable[[int], list[tuple[str, dict[str, Any]]]]:
            pairs = [(state, layer) for state in names for layer in range(num_layers)]
            return lambda page: [
                ("units", {"text": text, "page": page, "state": state, "layer": layer}) for state, layer in pairs
            ]

        predictions = lambda page: [("expected", {"text": text, "page": page})]  # noqa: E731
        tiers = [request_page, predictions, request_states(carried), request_states(gates)]
        counts: list[int] = []
        for tier, make_requests in enumerate(tiers):
            count = 0
            while count < (counts[0] if counts else num_pages) and self.add_if_fits(make_requests(count)):
                count += 1
                progress((tier + count / num_pages) / len(tiers))
            counts.append(count)
        if not counts[0]:
            raise SettingError(f"Not a single page of the text fits into {self.max_bytes / 1e6:.0f} MB.")
        return _describe_pages(num_pages, counts, self.max_bytes)


def _describe_pages(num_pages: int, counts: list[int], max_bytes: int) -> str:
    pages, predictions, states, gates = counts
    limit = f"limited to {max_bytes / 1e6:.0f} MB"
    summary = f"{pages} of {pages} pages" if pages == num_pages else f"the first {pages} of {num_pages} pages, {limit}"
    if min(predictions, states, gates) == pages:
        return f"{summary}, with all units"

    def describe(count: int) -> str:
        return "on all" if count == pages else f"on the first {count}" if count else "on none"

    summary += f"; all units' states {describe(states)}, all gates {describe(gates)}"
    summary += "" if predictions == pages else f", predictions {describe(predictions)}"
    return summary + ("" if pages < num_pages else f", {limit}")


def write_page(session: Session | AlignSession, path: Path, progress: Progress | None = None) -> str:
    """Write an exported page atomically; return a sentence on how much of the text is in it."""
    bundle = make_bundle(session, progress)
    with atomic(path) as temporary:
        temporary.write_text(with_bundle(shell(), bundle), encoding="utf-8")
    return bundle["note"]


class Frame:
    """The explorer in a notebook: an iframe with everything embedded."""

    def __init__(self, page: str, height: int = 640):
        self.page, self.height = page, height

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{html.escape(self.page, quote=True)}" sandbox="allow-scripts allow-downloads" '
            f'style="width:100%;height:{self.height}px;border:1px solid #ccc" title="relmo explore"></iframe>'
        )


def frame(session: Session | AlignSession, *, find: bool = False, height: int = 640) -> Frame:
    """Return a session as a frame for a notebook; with `find`, with the results of long computations."""
    return Frame(with_bundle(shell(), make_bundle(session, find=find, max_bytes=MAX_FRAME_BYTES)), height)
