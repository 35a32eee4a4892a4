"""`relmo serve` as a process: it prints where it is, finishes what it took, and can be killed and started again."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.small_models import bilm, language_model

pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'relmo[serve]'")
pytest.importorskip("httpx", reason="httpx is not installed: pip install 'relmo[dev]'")

import httpx

PATIENCE = 600
COMMAND = "serve"
Start = Callable[..., tuple[subprocess.Popen[str], str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    bilm().save_pretrained(made / "words")
    language_model().save_pretrained(made / "letters")
    return made


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """A function that starts a server with both models. -> its process and its address"""
    started: list[subprocess.Popen[str]] = []

    def begin(*flags: str, port: int = 0) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-m", "relmo", "serve", str(folder / "words"), f"abc={folder / 'letters'}"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [*command, "--port", str(port), "--device", "cpu", "--quiet", *flags],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        started.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


def ask(address: str, **body: Any) -> Any:
    return httpx.post(f"{address}embed", json={"sentences": ["the cat"], **body}, timeout=PATIENCE)


@pytest.mark.slow
def test_a_killed_server_is_started_again_and_a_told_one_finishes_what_it_took(start: Start) -> None:
    process, address = start()
    answer = ask(address).content
    assert json.loads(answer)["model"] == "words"
    process.send_signal(signal.SIGKILL)
    process.wait()
    with pytest.raises(httpx.TransportError):
        ask(address)
    process, again = start(port=int(address.rstrip("/").rpartition(":")[2]))
    assert again == address
    assert ask(address).content == answer
    body = {"model": "abc", "limit": 2000, "seed": 1}
    with httpx.stream("POST", f"{address}generate", json=body, timeout=PATIENCE) as stream:
        lines = stream.iter_lines()
        first = json.loads(next(lines))
        process.send_signal(signal.SIGTERM)
        *_, last = lines
    assert "added" in first
    (text,) = json.loads(last)["texts"]
    assert text["symbols"] == 2000 or text["ended"]
    assert process.wait(PATIENCE) == 0


@pytest.mark.slow
def test_an_address_for_others_asks_for_the_token_of_the_environment(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELMO_TOKEN", "correct horse")
    _, address = start("--host", "0.0.0.0")
    here = address.replace("0.0.0.0", "127.0.0.1")
    assert httpx.get(f"{here}health", timeout=PATIENCE).status_code == 200
    assert ask(here).status_code == 401


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "--token"),
        (["--token", "short"], "8 characters"),
        (["--port", "70000"], "--port must be"),
        (["--queue", "0"], "queue"),
    ],
)
def test_what_is_wrong_is_said_before_a_model_is_loaded(run: Any, arguments: list[str], said: str) -> None:
    status, _, error = run("no-such-model", *arguments)
    assert status == 2
    assert said in error


def test_two_models_of_one_name_and_models_that_cannot_be_served_are_one_line(run: Any, folder: Path) -> None:
    status, _, error = run(folder / "words", folder / "words", "--port", "0")
    assert status == 2
    assert "name words" in error
    status, _, error = run("words", "--port", "0")
    assert status == 2
    assert "cannot be served" in error
