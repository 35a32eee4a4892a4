"""The service: responses equal the model's, for many clients at once; errors are one line; tokens are required."""

import asyncio
import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from relmo.errors import SettingError
from relmo.models.bilm import BiLM
from relmo.networks.elmo import without_output
from relmo.settings.options import ServeLimits
from relmo.tasks.classifier import Classifier, SentencePairs
from relmo.tasks.features import WordFeatures, count_words
from relmo.tasks.tagger import Tagger
from relmo.tasks.task import Labels, Workload
from support.sentence_tasks import classifier_settings, pairs_settings
from support.small_models import bilm, language_model
from support.tagging import settings as tagger_settings

pytest.importorskip("starlette", reason="starlette is not installed: pip install 'relmo[serve]'")
pytest.importorskip("httpx", reason="httpx is not installed: pip install 'relmo[dev]'")

import httpx

from benchmarks.explorer import running
from relmo.serve.server import make_app

LINES = ["the cat sat", "a mat , the large cat", "the mat", "cat cat cat cat sat", ""]
PATIENCE = 600


def served(models: dict[str, Any], token: str | None = None, **limits: Any) -> AbstractContextManager[Any]:
    """Serve models on a free port; yield a client."""

    @contextmanager
    def run() -> Iterator[Any]:
        app = make_app(models, ServeLimits(**limits), token=token)
        with running(app, seconds=PATIENCE) as server, httpx.Client(timeout=PATIENCE) as client:
            client.base_url = "http://{}:{}".format(*server.address)
            client.address = server.address
            yield client

    return run()


def task(model_class: Any, settings: Any, labels: list[str]) -> Any:
    """Return an untrained model of a task."""
    torch.manual_seed(0)
    features = WordFeatures(settings.input, count_words([line.split() for line in LINES], settings.input))
    return model_class(settings, features, {"labels": Labels(labels)}).initialize()


def tagger() -> Tagger:
    return task(Tagger, tagger_settings(text={"task": "ner"}), ["O", "U-PER", "B-PER", "L-PER", "I-PER"])


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    models = {
        "words": bilm(),
        "letters": language_model(),
        "names": tagger(),
        "moods": task(Classifier, classifier_settings(), ["pos", "neg"]),
        "same": task(SentencePairs, pairs_settings(), ["same", "different"]),
    }
    with served(models) as client:
        yield client


def test_vectors_are_those_of_the_model_to_the_bit(client: Any) -> None:
    expected = bilm().embed(LINES)
    results = client.post("/embed", json={"sentences": LINES}).json()["results"]
    for result, vectors in zip(results, expected, strict=True):
        assert np.array_equal(np.array(result["vectors"], dtype=np.float32).reshape(vectors.shape), vectors)
    packed = client.post("/embed", json={"sentences": [LINES[0].split()], "format": "base64"}).json()["results"][0]
    assert packed["tokens"] == LINES[0].split()
    assert base64.b64decode(packed["vectors"]) == expected[0].tobytes()
    assert packed["shape"] == list(expected[0].shape)
    pooled = client.post("/embed", json={"sentences": LINES, "layers": "average", "pooling": "mean"}).json()["results"]
    pooled_vectors = [np.array(result["vectors"], dtype=np.float32) for result in pooled]
    assert np.array_equal(pooled_vectors, bilm().sentence_vectors(LINES))


def alike(a: Any, b: Any) -> bool:
    """Compare JSON values up to the last digits of numbers, which depend on the batch."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(alike(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(alike, a, b))
    return bool(a == (pytest.approx(b, abs=1e-6) if isinstance(b, float) else b))


def test_text_that_is_split_already_is_split_at_white_space(client: Any) -> None:
    text, split = "the cat's mat.", ["the", "cat's", "mat."]
    for tokenizer, words in (("whitespace", split), ("words", ["the", "cat", "'s", "mat", "."])):
        option = {"tokenizer": tokenizer}
        tagged = client.post("/predict", json={"model": "names", "inputs": [text], **option}).json()["results"][0]
        assert [token["text"] for token in tagged["tokens"]] == words
        embedded = client.post("/embed", json={"sentences": [text], **option}).json()["results"][0]
        assert embedded["tokens"] == words
        rows = client.post("/surprisal", json={"sentences": [text], **option}).json()["results"]
        assert [row["word"] for row in rows] == words


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("names", ["the cat sat", ["a", "mat"], ""]),
        ("moods", ["the cat sat", ["a", "mat"], ""]),
        ("same", ["the cat\tthe mat", ["a cat", "the mat"], [["a", "cat"], ["the"]]]),
    ],
)
def test_predictions_are_the_records_of_the_command_line(client: Any, name: str, inputs: list[Any]) -> None:
    results = client.post("/predict", json={"model": name, "inputs": inputs}).json()["results"]
    bodies = [{"model": name, "inputs": [item]} for item in inputs]
    assert alike(results, [client.post("/predict", json=body).json()["results"][0] for body in bodies])
    if name == "names":
        model = tagger()
        example = model.make_example("the cat sat")
        assert results[0] == next(model.predict_examples([example])).to_dict()


def test_many_clients_at_once_get_what_each_gets_alone(client: Any) -> None:
    bodies = [{"sentences": [" ".join(["the"] * (i % 7)), f"cat{i}"], "format": "base64"} for i in range(48)]
    alone = [client.post("/embed", json=body).content for body in bodies]

    async def crowd() -> list[bytes]:
        async with httpx.AsyncClient(base_url=client.base_url, timeout=PATIENCE) as many:
            return [
                response.content for response in await asyncio.gather(*(many.post("/embed", json=b) for b in bodies))
            ]

    assert asyncio.run(crowd()) == alone


def join_stream(response: Any) -> tuple[str, dict[str, Any]]:
    """Return a streamed text and its last event."""
    text, last = "", {}
    for line in response.iter_lines():
        last = json.loads(line)
        text = last.get("text", text) + last.get("added", "")
    return text, last


def test_a_text_is_streamed_as_it_grows_and_is_the_one_that_the_model_writes(client: Any) -> None:
    model = language_model()
    for seed in range(3):
        with client.stream("POST", "/generate", json={"prompt": "the ", "limit": 30, "seed": seed}) as answer:
            assert answer.headers["content-type"] == "application/x-ndjson"
            text, last = join_stream(answer)
        assert text == last["texts"][0]["text"] == model.generate("the ", limit=30, seed=seed)
    complete = client.post("/generate", json={"limit": 9, "samples": 2, "stream": False, "temperature": 0}).json()
    *_, expected = model.stream(limit=9, samples=2, temperature=0)
    assert [text["text"] for text in complete["texts"]] == [text.text for text in expected]


def test_texts_of_many_clients_grow_together(client: Any) -> None:
    bodies = [{"prompt": "a cat " * (i % 3), "limit": 5 + i, "seed": i, "stream": False} for i in range(12)]

    async def crowd() -> list[Any]:
        async with httpx.AsyncClient(base_url=client.base_url, timeout=PATIENCE) as many:
            return [
                response.json() for response in await asyncio.gather(*(many.post("/generate", json=b) for b in bodies))
            ]

    for body, answer in zip(bodies, asyncio.run(crowd()), strict=True):
        options = {name: value for name, value in body.items() if name != "stream"}
        assert answer["texts"][0]["text"] == language_model().generate(**options)


WRONG: list[tuple[str, Any]] = [
    ("embed", {}),
    ("embed", {"sentences": "the cat"}),
    ("embed", {"sentences": []}),
    ("embed", {"sentences": [5]}),
    ("embed", {"sentences": [["a", 5]]}),
    ("embed", {"sentences": ["a"], "layers": 99}),
    ("embed", {"sentences": ["a"], "layers": True}),
    ("embed", {"sentences": ["a"], "layers": ["all"]}),
    ("embed", {"sentences": ["a"], "pooling": 5}),
    ("embed", {"sentences": ["a"], "layer": 1}),
    ("embed", {"sentences": ["a"], "model": "names"}),
    ("embed", {"sentences": ["a"], "model": ["words"]}),
    ("predict", {"inputs": [5]}),
    ("predict", {"inputs": ["a"], "tokenizer": 1}),
    ("predict", {"inputs": ["no tab in it"], "model": "same"}),
    ("generate", {"prompt": 5}),
    ("generate", {"limit": 0}),
    ("generate", {"limit": None}),
    ("generate", {"temperature": "hot"}),
    ("generate", {"temperature": -1}),
    ("generate", {"top_k": 0}),
    ("generate", {"top_p": None}),
    ("generate", {"seed": -1}),
    ("generate", {"stream": "no"}),
]


@pytest.mark.parametrize(("verb", "body"), WRONG)
def test_what_is_wrong_in_a_request_is_told_in_one_line(client: Any, verb: str, body: Any) -> None:
    answer = client.post(f"/{verb}", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert 0 < len(error) <= 400
    assert "\n" not in error


def test_what_is_no_request_is_told_so_too(client: Any) -> None:
    for content in (b"", b"{", b"[]", b"5", b'{"sentences": ["\\ud800"]}', b"[" * 9000, b"\xff"):
        assert client.post("/embed", content=content).status_code == 400
    assert "sentences" in client.post("/embed", json={"sentenses": ["a"]}).json()["error"]
    assert client.get("/embed").status_code == 405
    assert client.post("/health").status_code == 405
    assert client.get("/nothing").status_code == 404


def test_surprisal_is_that_of_the_model(client: Any) -> None:
    body = {"model": "words", "sentences": ["the cat sat", "the mat"]}
    rows = client.post("/surprisal", json=body).json()["results"]
    expected = bilm().surprisal(["the cat sat", "the mat"]).to_dict()["surprisal"]
    assert [row["surprisal"] for row in rows] == pytest.approx(expected, rel=1e-5)


def test_the_description_is_of_what_there_is_and_its_examples_work(client: Any) -> None:
    description = client.get("/openapi.json").json()
    assert "http://" not in json.dumps(description)
    assert "https://" not in json.dumps(description)
    for path, ways in description["paths"].items():
        if "get" in ways:
            assert client.get(path).status_code == 200
        else:
            example = ways["post"]["requestBody"]["content"]["application/json"]["example"]
            assert client.post(path, json=example).status_code == 200
    embed = description["paths"]["/embed"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert embed["properties"]["model"]["enum"] == ["words"]
    predict = description["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert [schema["properties"]["model"]["enum"] for schema in predict["anyOf"]] == [["names"], ["moods"], ["same"]]
    assert ["model" in schema["required"] for schema in predict["anyOf"]] == [False, True, True]


def metrics(client: Any) -> dict[str, float]:
    lines = [line for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_requests_are_counted_by_how_they_were_answered() -> None:
    with served({'a "model"': bilm()}, max_words=10) as client:
        for body in ({"sentences": ["a cat"]}, {"sentences": ["a mat"]}, {"sentences": 5}, {"sentences": ["a " * 99]}):
            client.post("/embed", json=body)
        values, labels = metrics(client), r'verb="embed",model="a \"model\""'
        for status, count in ((200, 2), (400, 1), (413, 1)):
            assert values[f'relmo_requests_total{{{labels},status="{status}"}}'] == count
        assert values[f"relmo_request_seconds_count{{{labels}}}"] == 2
        assert values[f'relmo_request_seconds_bucket{{{labels},le="+Inf"}}'] == 2
        assert values[f"relmo_words_total{{{labels}}}"] == 4
        assert values[f"relmo_batch_requests_sum{{{labels}}}"] == 2
        assert values["relmo_requests_inside"] == 0
        assert values["process_resident_memory_bytes"] > 1e6


class Gated:
    """Stub of a new kind of task, which predicts once its gate is open."""

    kind = "new"
    input_type, line_pattern = list[Any], None

    def __init__(self) -> None:
        self.gate, self.began = threading.Event(), threading.Event()

    def read_line(self, line: str, *, tokenized: bool = False) -> str:
        return f"line {line}"

    def make_example(self, inputs: Any, *, tokenized: bool = False) -> str:
        return f"inputs {inputs}"

    def workload(self, example: str) -> Workload:
        return Workload(len(example.split()))

    def with_full_records(self) -> "Gated":
        return self

    def predict_examples(self, examples: Any) -> Iterator["Shouted"]:
        self.began.set()
        assert self.gate.wait(PATIENCE)
        return (Shouted(example, example.upper()) for example in examples)


class Shouted(NamedTuple):
    """Prediction of the stub."""

    example: str
    answer: str

    def to_dict(self) -> dict[str, str]:
        return {self.example: self.answer}


def test_a_task_that_the_service_has_not_heard_of_is_served() -> None:
    model = Gated()
    model.gate.set()
    with served({"new": model}) as client:
        response = client.post("/predict", json={"inputs": ["a", ["b", [1]], ["c", "d"]]}).json()
    assert response["results"] == [
        {"line a": "LINE A"},
        {"inputs ('b', [1])": "INPUTS ('B', [1])"},
        {"inputs ['c', 'd']": "INPUTS ['C', 'D']"},
    ]


def ask_in_background(client: Any, body: dict[str, Any]) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(client.post("/predict", json=body)))
    thread.start()
    return thread, answers


def test_where_the_house_is_full_others_are_told_to_come_again_and_those_inside_are_answered() -> None:
    model = Gated()
    with served({"new": model}, queue=2) as client:
        waiting = [ask_in_background(client, {"inputs": [str(i)]}) for i in range(2)]
        while metrics(client)["relmo_requests_inside"] < 2:
            time.sleep(0.01)
        full = client.post("/predict", json={"inputs": ["a"]})
        assert (full.status_code, full.headers["retry-after"]) == (503, "1")
        assert client.get("/health").status_code == 200
        model.gate.set()
        for thread, answers in waiting:
            thread.join()
            assert answers[0].status_code == 200
        assert client.post("/predict", json={"inputs": ["a"]}).status_code == 200


def test_a_client_that_goes_is_not_waited_for() -> None:
    model = Gated()
    body = b'{"inputs": ["a"]}'
    head = b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    with served({"new": model}) as client:
        with socket.create_connection(client.address) as gone:
            gone.sendall(head + body)
            assert model.began.wait(PATIENCE)
        gone_total = 'relmo_requests_total{verb="predict",model="new",status="499"}'
        while metrics(client).get(gone_total) != 1:
            time.sleep(0.01)
        assert metrics(client)["relmo_requests_inside"] == 1  # its computation still runs
        model.gate.set()
        while metrics(client)["relmo_requests_inside"] > 0:
            time.sleep(0.01)


def test_requests_that_are_too_large_or_too_many_are_refused() -> None:
    with served({"words": bilm()}, max_bytes=1000, max_words=20) as client:
        assert client.post("/embed", content=b"x" * 1001).status_code == 413
        assert client.post("/embed", json={"sentences": ["a " * 21]}).status_code == 413
        assert client.post("/embed", json={"sentences": ["a " * 10, "a " * 9]}).status_code == 200
        assert client.post("/embed", json={"sentences": ["a " * 11]}).status_code == 413
    with served({"words": bilm()}, rate=1e-4) as client:
        assert client.post("/embed", json={"sentences": ["a"]}).status_code == 200
        again = client.post("/embed", json={"sentences": ["a"]})
        assert again.status_code == 429
        assert 9000 < int(again.headers["retry-after"]) <= 10_001
        assert client.get("/health").status_code == 200


def test_with_a_token_nothing_but_health_is_answered_without_it() -> None:
    with served({"words": bilm()}, token="correct horse") as client:
        assert client.get("/health").status_code == 200
        for headers in ({}, {"authorization": "Bearer wrong"}):
            for path in ("/models", "/metrics", "/openapi.json"):
                assert client.get(path, headers=headers).status_code == 401
            assert client.post("/embed", json={"sentences": ["a"]}, headers=headers).status_code == 401
        right = {"authorization": "Bearer correct horse"}
        assert client.post("/embed", json={"sentences": ["a"]}, headers=right).status_code == 200
        assert client.get("/openapi.json", headers=right).json()["security"] == [{"token": []}]


@dataclass
class Rows:
    """Table of surprisals."""

    columns: dict[str, list[Any]]

    def to_dict(self) -> dict[str, list[Any]]:
        return self.columns


class Surprised:
    """Stub of a language model: the surprisal of a word is its length."""

    kind = "lm"

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def count_symbols(self, sentence: str) -> int:
        return len(sentence.split())

    def surprisal(self, texts: list[str], **options: Any) -> Rows:
        self.calls.append((texts, options))
        words = [(line, word) for line, text in enumerate(texts, start=1) for word in text.split()]
        lines, names = [line for line, _ in words], [word for _, word in words]
        return Rows({"line": lines, "word": names, "surprisal": [float(len(name)) for name in names]})


def test_a_model_offers_only_what_it_can_do_and_the_default_is_the_first_that_can() -> None:
    full = bilm()
    vectors_only = BiLM(without_output(full.network), full.settings)
    with served({"original": vectors_only, "whole": full}) as client:
        verbs = {model["name"]: model["verbs"] for model in client.get("/models").json()["models"]}
        assert verbs == {"original": ["embed"], "whole": ["embed", "surprisal"]}
        assert client.post("/embed", json={"sentences": LINES}).json()["model"] == "original"
        answer = client.post("/surprisal", json={"sentences": LINES}).json()
        assert (answer["model"], answer["results"][0]["word"]) == ("whole", "the")
        error = client.post("/surprisal", json={"sentences": LINES, "model": "original"})
        assert (error.status_code, "whole" in error.json()["error"]) == (400, True)
    with served({"original": vectors_only}) as client:
        assert client.post("/surprisal", json={"sentences": LINES}).status_code == 404
        assert "/surprisal" not in client.get("/openapi.json").json()["paths"]


def test_surprisal_is_offered_where_a_model_has_it() -> None:
    model = Surprised()
    with served({"lm": model}) as client:
        response = client.post("/surprisal", json={"sentences": ["a cat", "mat"], "context": "sentence", "ends": True})
        assert [(row["line"], row["word"], row["surprisal"]) for row in response.json()["results"]] == [
            (1, "a", 1.0),
            (1, "cat", 3.0),
            (2, "mat", 3.0),
        ]
        assert client.post("/surprisal", json={"sentences": ["a"], "context": "book"}).status_code == 400
    assert model.calls == [(["a cat", "mat"], {"context": "sentence", "ends": True})]
    from relmo.serve.endpoints import SurprisalEndpoint

    endpoint, texts_of_requests = SurprisalEndpoint("lm", model), [["a cat", "mat"], ["the mat"]]
    requests, options = [list(enumerate(texts, start=1)) for texts in texts_of_requests], ("context", "sentence")
    together = endpoint.compute((options, ("ends", False)), requests)
    assert together == [endpoint.compute((options, ("ends", False)), [request])[0] for request in requests]
    assert len(model.calls) == 4  # one for both, and one each
    assert "space" in endpoint.request_type.__struct_fields__  # as its method takes anything
    endpoint.compute((("ends", False),), requests)
    assert [texts for texts, _ in model.calls[4:]] == texts_of_requests  # texts are not mixed


def test_an_option_that_has_no_meaning_for_a_model_is_no_field_of_its() -> None:
    class Forwards(Surprised):
        def surprisal(self, texts: list[str], *, context: str = "text", ends: bool = False) -> Rows:  # type: ignore[override]
            return super().surprisal(texts)

    with served({"lm": Forwards()}) as client:
        assert client.post("/surprisal", json={"sentences": ["a"], "context": "text"}).status_code == 200
        wrong = client.post("/surprisal", json={"sentences": ["a"], "direction": "backward"})
        assert (wrong.status_code, "direction" in wrong.json()["error"]) == (400, True)


def test_a_model_that_can_do_nothing_here_is_refused_and_so_are_limits_under_which_nobody_is_served() -> None:
    class Mute:
        kind = "skipgram"

    with pytest.raises(SettingError, match="served"):
        make_app({"words": Mute()}, ServeLimits())
    for limits in (ServeLimits(queue=0), ServeLimits(seconds=0), ServeLimits(rate=-1)):
        with pytest.raises(SettingError, match="must be"):
            limits.check()
