"""`relmo serve` against hostile clients: waiting times of others, memory, and conformance with the schema.

    python tests/campaigns/hostile.py [waits words schema] [--requests 20000]

waits    the most expensive request that each bundled model admits, and at once a small one: seconds until its answer
words    many requests, each with words that the server has not seen: resident memory over time
schema   schemathesis (which `make load` installs) against the description of the service

Results are JSON lines; exit status 1 if a small request waits for more than a second, if memory still grows at the end,
or if schemathesis finds something. Run it on an idle machine.
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from service import Asking, Client, Server, _body, served, trained

WORDS, LONGEST = 2040, 1020  # units of a request and of one input; --max-words is 2048
EXPENSIVE: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("small", "embed", {"sentences": [["x"] * LONGEST]}, {"sentences": ["A cat."]}),
    ("small", "embed", {"sentences": [[f"x{i}"] for i in range(WORDS)]}, {"sentences": ["A cat."]}),
    ("small", "surprisal", {"sentences": [["x"] * (LONGEST // 2)]}, {"sentences": ["A cat."]}),
    ("small", "surprisal", {"sentences": ["x"] * (LONGEST // 4)}, {"sentences": ["A cat."]}),
    ("small", "surprisal", {"sentences": ["x"] * (WORDS // 4), "context": "sentence"}, {"sentences": ["A cat."]}),
    ("english-french", "predict", {"inputs": ["x" * 20_000]}, {"inputs": ["A cat."]}),
    ("english-french", "predict", {"inputs": ["x" * 250]}, {"inputs": ["A cat."]}),
    ("english-french", "predict", {"inputs": ["x" * 80] * 9}, {"inputs": ["A cat."]}),
    ("addition", "predict", {"inputs": ["1+2" * 80]}, {"inputs": ["1+2"]}),
]
LANGUAGE_MODELS = (
    *("prose", "code", "prose-elman", "prose-gru", "prose-lstm"),
    *("anbn-gru", "anbn-lstm", "hello", "hello-gru", "hello-lstm"),
)
for model in LANGUAGE_MODELS:
    EXPENSIVE += [
        (model, "surprisal", {"sentences": ["a" * LONGEST]}, {"sentences": ["aa"]}),
        (model, "generate", {"prompt": "a", "limit": 31, "samples": 64}, {"prompt": "a", "limit": 3, "stream": False}),
        (model, "generate", {"prompt": "a" * LONGEST, "limit": 3}, {"prompt": "a", "limit": 3, "stream": False}),
    ]


async def _wait_behind(port: int, verb: str, expensive: dict[str, Any], small: dict[str, Any]) -> dict[str, Any]:
    """Send an expensive request and a small one just after it."""
    await Client(port).ask(verb, _body(**small))  # the first request is slower than others
    first = asyncio.create_task(Client(port).ask(verb, _body(**expensive)))
    await asyncio.sleep(0.02)
    start = time.perf_counter()
    status, _ = await Client(port).ask(verb, _body(**small))
    seconds = time.perf_counter() - start
    return {"expensive": (await first)[0], "small": status, "seconds": round(seconds, 3)}


def measure_waits() -> Iterator[dict[str, Any]]:
    """Time a small request behind the most expensive one of each model."""
    for model, verb, expensive, small in EXPENSIVE:
        with served(Asking([model], verb, [])) as server:
            row = asyncio.run(_wait_behind(server.port, verb, expensive, small))
        yield {"what": "waits", "model": model, "verb": verb} | row | {"ok": row["small"] == 200 and row["seconds"] < 1}


async def _send_new_words(server: Server, requests: int) -> dict[str, Any]:
    client, memory = Client(server.port), []
    for number in range(requests):
        words = [f"word{number}x{i}" for i in range(10)]
        words.append("long" * 2000 + str(number))
        status, _ = await client.ask("embed", _body(sentences=[words], layers="top", pooling="mean"))
        assert status == 200
        if number % (requests // 40) == 0:
            memory.append(server.memory())
    memory.append(server.memory())
    half, last = memory[len(memory) // 2], memory[-1]
    return {"what": "words", "requests": requests, "MB": memory[:: max(1, len(memory) // 10)], "last MB": last} | {
        "ok": last <= 1.02 * half
    }


def check_schema() -> dict[str, Any]:
    """Run schemathesis over all verbs."""
    command = shutil.which("schemathesis", path=Path(sys.executable).parent)
    if command is None:
        return {"what": "schema", "error": "schemathesis is not installed: pip install schemathesis", "ok": False}
    with tempfile.TemporaryDirectory() as folder:
        names = trained(Path(folder), "tagger", "names.iob2", "--preset", "ner")
        with served(Asking(["small", "prose", "english-french", str(names)], "", [])) as server:
            config = Path(folder) / "schemathesis.toml"
            # 413: whether a request is too large depends on its model, which a schema does not say
            config.write_text('[checks.positive_data_acceptance]\nexpected-statuses = ["2xx", 413]\n', encoding="utf-8")
            checks = ["--checks", "all", "--phases", "examples,coverage,fuzzing", "--max-examples", "50", "--seed", "1"]
            url = f"{server.address}/openapi.json"
            options = ["--config-file", str(config), "run", url, *checks]
            done = subprocess.run([command, *options], cwd=folder, capture_output=True, text=True, check=False)
    print(done.stdout[-12000:], file=sys.stderr)
    return {"what": "schema", "status": done.returncode, "ok": done.returncode == 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["waits", "words", "schema"])
    parser.add_argument("--requests", type=int, default=20_000)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def report(row: dict[str, Any]) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)

    if "waits" in arguments.what:
        for row in measure_waits():
            report(row)
    if "words" in arguments.what:
        with served(Asking(["small"], "embed", [])) as server:
            report(asyncio.run(_send_new_words(server, arguments.requests)))
    if "schema" in arguments.what:
        report(check_schema())
    sys.exit(not all(row["ok"] for row in rows))


if __name__ == "__main__":
    main()
