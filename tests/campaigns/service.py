"""`relmo serve` under load: how much it answers, and that it answers rightly, whatever its clients do.

    python tests/campaigns/service.py [throughput overload clients ending kills soak] [--seconds 10] [--soak 1800]

throughput   64 clients beside one that asks one by one, in turn, some rounds of each; with wrk where it is installed
overload     four times as many clients as the queue has room for: those let in get their answers, the others a 503
clients      some that send half a request, do not read their answer, or go before it: the others notice nothing
ending       SIGTERM under load: whoever was let in gets the whole answer
kills        SIGKILL and a new start, five times, with clients that try again: every answer is the right one
soak         all verbs for a long time: memory stays as it is

The server is a process of its own. An answer is right where it is, byte for byte, that of the same request alone
(but for the last digits of the probabilities of generated texts).
Results are JSON lines; exit status 1 where something is wrong.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import relmo

DATA = Path(relmo.__file__).parent / "data"
CLIENTS, QUEUE = 64, 64
LUA = """
local lines, i = {}, 0
for line in io.lines(os.getenv("BODIES")) do lines[#lines + 1] = line end
request = function()
  i = i % #lines + 1
  return wrk.format("POST", os.getenv("VERB"), nil, lines[i])
end
done = function(summary, latency)
  local errors = summary.errors
  local bad = errors.status + errors.connect + errors.read + errors.write + errors.timeout
  io.write(string.format('{"requests": %d, "seconds": %f, "p50": %f, "p99": %f, "bad": %d}\\n', summary.requests,
    summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, bad))
end
"""


class Asking(NamedTuple):
    """Requests to an endpoint of a model, and the flags of its server."""

    models: list[str]
    verb: str
    bodies: list[bytes]
    flags: tuple[str, ...] = ()


def sentences(count: int) -> list[str]:
    lines = (DATA / "alice.txt").read_text(encoding="utf-8").split("\n")
    return [line.strip() for line in lines if len(line.split()) > 4][:count]


def embedding(*flags: str) -> Asking:
    """A sentence a request, one vector a sentence."""
    options = {"layers": "average", "pooling": "mean", "format": "base64"}
    return Asking(["small"], "embed", [_body(sentences=[line], **options) for line in sentences(300)], flags)


def predicting(model: Path) -> Asking:
    return Asking([str(model)], "predict", [_body(inputs=[line]) for line in sentences(300)])


def _body(**given: Any) -> bytes:
    return json.dumps(given).encode()


class Server:
    """A server in a process of its own, on a port that stays the same when it is started again."""

    def __init__(self, asking: Asking, *flags: str, port: int = 0):
        command = [sys.executable, "-m", "relmo", "serve", *asking.models, "--port", str(port), "--quiet"]
        self.process = subprocess.Popen([*command, *asking.flags, *flags], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip().rstrip("/")
        self.port = int(self.address.rpartition(":")[2])

    def memory(self) -> int:
        """Resident, in MB."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * 4096 >> 20

    def processor(self) -> float:
        """Seconds that it has computed."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self, how: int = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        return self.process.wait()


@contextmanager
def served(asking: Asking, *flags: str) -> Iterator[Server]:
    server = Server(asking, *flags)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.end()


class Client:
    """A client with a connection that it keeps."""

    def __init__(self, port: int):
        self.port = port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def ask(self, verb: str, body: bytes, method: str = "POST") -> tuple[int, bytes]:
        """The status and the answer; ConnectionError where there is no whole answer."""
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        assert self.reader is not None
        head = f"{method} /{verb} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
        try:
            self.writer.write(head.encode() + body)
            top = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
            if "content-length: " in top:
                answer = await self.reader.readexactly(int(top.partition("content-length: ")[2].split("\r")[0]))
            else:
                answer = await self._chunks(self.reader)
        except (asyncio.IncompleteReadError, OSError) as error:
            self.close()
            raise ConnectionError from error
        if "connection: close" in top:
            self.close()
        return int(top.split()[1]), answer

    async def _chunks(self, reader: asyncio.StreamReader) -> bytes:
        found = b""
        while size := int(await reader.readline(), 16):
            found += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
        return found

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None


class Tally:
    """Counts of the responses that clients received."""

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.times: list[float] = []
        self.wrong = 0

    def summary(self) -> dict[str, Any]:
        times = sorted(self.times) or [0.0]
        p50, p99 = (round(1000 * times[int(share * (len(times) - 1))], 1) for share in (0.5, 0.99))
        return {**self.statuses, "wrong": self.wrong, "p50": p50, "p99": p99}


async def alone(port: int, asking: Asking) -> dict[bytes, bytes]:
    """The answer to each request, asked one by one."""
    client = Client(port)
    found = {body: (await client.ask(asking.verb, body))[1] for body in asking.bodies}
    client.close()
    return found


def comparable(asking: Asking, answer: bytes) -> Any:
    """Return the part of a response that must not depend on the batch: generated texts without their probabilities."""
    if asking.verb != "generate" or not answer:
        return answer
    return [text["text"] for text in json.loads(answer)["texts"]]


async def keep_asking(
    port: int, asking: Asking, right: dict[bytes, bytes], tally: Tally, until: Callable[[], bool], seed: int
) -> None:
    """Asks for one thing after the other; after a refusal or a lost connection it tries again, a little later."""
    client, rng = Client(port), random.Random(seed)
    while not until():
        body = rng.choice(asking.bodies)
        started = time.perf_counter()
        try:
            status, answer = await client.ask(asking.verb, body)
        except OSError:
            tally.statuses["lost"] += 1
            await asyncio.sleep(0.1)
            continue
        tally.statuses[str(status)] += 1
        if status == 200:
            tally.times.append(time.perf_counter() - started)
            tally.wrong += comparable(asking, answer) != comparable(asking, right[body])
        else:
            await asyncio.sleep(0.05)
    client.close()


async def crowd(
    port: int, asking: Asking, right: dict[bytes, bytes], clients: int, until: Callable[[], bool], tally: Tally
) -> None:
    await asyncio.gather(*(keep_asking(port, asking, right, tally, until, seed) for seed in range(clients)))


def after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def wrk(server: Server, asking: Asking, clients: int, seconds: float, folder: Path) -> dict[str, float]:
    """wrk's figures for so many clients that ask without a pause; times in ms."""
    script, bodies = folder / "ask.lua", folder / "bodies"
    script.write_text(LUA)
    bodies.write_bytes(b"\n".join(asking.bodies))
    command = ["wrk", "-t1", f"-c{clients}", f"-d{seconds:.0f}s", "--timeout", "60s", "-s", script, server.address]
    environment = os.environ | {"BODIES": str(bodies), "VERB": f"/{asking.verb}"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def own_load(server: Server, asking: Asking, clients: int, seconds: float, folder: Path) -> dict[str, float]:
    """The same with clients of our own."""
    tally, right = Tally(), dict.fromkeys(asking.bodies, b"")
    until = after(seconds)
    asks = (keep_asking(server.port, asking, right, tally, until, seed) for seed in range(clients))

    async def run() -> None:
        await asyncio.gather(*asks)

    asyncio.run(run())
    found, requests = tally.summary(), tally.statuses["200"]
    bad = tally.statuses.total() - requests
    return {"requests": requests, "seconds": seconds, "p50": found["p50"], "p99": found["p99"], "bad": bad}


def throughput(askings: dict[str, Asking], seconds: float, rounds: int, folder: Path) -> Iterator[dict[str, Any]]:
    """Requests a second of 64 clients and of one, in turn. `processor` is the server's time for a request, in ms, which
    others on the machine change little."""
    load = wrk if shutil.which("wrk") else own_load
    for name, asking in askings.items():
        with served(asking) as server:
            load(server, asking, CLIENTS, 3, folder)
            found: dict[int, list[dict[str, float]]] = {1: [], CLIENTS: []}
            for _ in range(rounds):
                for clients, held in found.items():
                    before = server.processor()
                    figures = load(server, asking, clients, seconds, folder)
                    figures["rate"] = figures["requests"] / figures["seconds"]
                    figures["processor"] = 1000 * (server.processor() - before) / max(1, figures["requests"])
                    held.append(figures)
        ratios = [many["rate"] / max(one["rate"], 1e-9) for one, many in zip(found[1], found[CLIENTS], strict=True)]
        row: dict[str, Any] = {"what": name, "ratio": round(statistics.median(ratios), 2)}
        for clients, held in found.items():
            medians = {key: round(statistics.median(each[key] for each in held), 2) for key in held[0]}
            row[f"{clients} clients"] = {key: medians[key] for key in ("rate", "p50", "p99", "processor", "bad")}
        row["ok"] = all(figures["bad"] == 0 for held in found.values() for figures in held)
        yield row


async def _overload(server: Server, asking: Asking, seconds: float) -> dict[str, Any]:
    right, tally = await alone(server.port, asking), Tally()
    before = server.memory()
    await crowd(server.port, asking, right, 4 * QUEUE, after(seconds), tally)
    found = tally.summary() | {"MB before": before, "MB after": server.memory(), "rate": len(tally.times) / seconds}
    found["inside"] = await inside(server.port)
    alive = server.process.poll() is None
    return found | {"ok": alive and not tally.wrong and not tally.statuses["lost"] and found["inside"] == 0}


async def inside(port: int) -> float:
    """Requests that the server has not answered, when those that were given up have left."""
    for _ in range(100):
        _, text = await Client(port).ask("metrics", b"", "GET")
        (line,) = [line for line in text.decode().splitlines() if line.startswith("relmo_requests_inside")]
        if float(line.split()[1]) == 0:
            return 0
        await asyncio.sleep(0.3)
    return float(line.split()[1])


async def _bad_client(port: int, kind: str, body: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST /embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
    with suppress(OSError):
        if kind == "half":
            writer.write(head + body[:5])
            await reader.read()  # until the server has had enough
        elif kind == "deaf":
            for _ in range(20):
                writer.write(head + body)
                await writer.drain()
            await asyncio.sleep(5)
        else:
            writer.write(head + body)
            await asyncio.sleep(random.random() / 20)
    writer.transport.abort()


async def _bad_clients(server: Server, asking: Asking, seconds: float) -> dict[str, Any]:
    right, tally = await alone(server.port, asking), Tally()
    before, until, large = server.memory(), after(seconds), _body(sentences=sentences(40))

    async def trouble(kind: str) -> None:
        while not until():
            await _bad_client(server.port, kind, large)
            await asyncio.sleep(0.1)

    kinds = ["half"] * 30 + ["deaf"] * 15 + ["gone"] * 15
    await asyncio.gather(crowd(server.port, asking, right, 16, until, tally), *map(trouble, kinds))
    found = tally.summary() | {"MB before": before, "MB after": server.memory(), "inside": await inside(server.port)}
    return found | {"ok": not tally.wrong and not tally.statuses["lost"] and found["inside"] == 0}


async def _ending(server: Server, asking: Asking) -> dict[str, Any]:
    """Each client asks once, and the server is told to end when all are let in."""
    right = await alone(server.port, asking)
    clients = [Client(server.port) for _ in range(CLIENTS)]
    for client in clients:
        await client.ask("health", b"", "GET")  # it has a connection
    asked = [asyncio.create_task(client.ask(asking.verb, asking.bodies[0])) for client in clients]
    while (await _inside_now(server.port)) < CLIENTS // 2:
        await asyncio.sleep(0.001)
    server.process.send_signal(signal.SIGTERM)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    whole = sum(answer == (200, right[asking.bodies[0]]) for answer in answers)
    status = await asyncio.to_thread(server.process.wait)
    return {"asked": CLIENTS, "answered": whole, "exit status": status, "ok": whole == CLIENTS and status == 0}


async def _inside_now(port: int) -> float:
    _, text = await Client(port).ask("metrics", b"", "GET")
    return next(float(line.split()[1]) for line in text.decode().splitlines() if line.startswith("relmo_requests_i"))


async def _kills(asking: Asking, kills: int) -> dict[str, Any]:
    server, tally, done = Server(asking), Tally(), False

    async def kill() -> None:
        nonlocal server, done
        for _ in range(kills):
            await asyncio.sleep(2)
            server.end(signal.SIGKILL)
            server = await asyncio.to_thread(Server, asking, port=server.port)
        await asyncio.sleep(2)
        done = True

    right = await alone(server.port, asking)
    asks = (keep_asking(server.port, asking, right, tally, lambda: done, seed) for seed in range(32))
    await asyncio.gather(kill(), *asks)
    found = tally.summary() | {"kills": kills, "exit status": server.end()}
    return found | {"ok": not tally.wrong and tally.statuses["200"] > 0 and tally.statuses["lost"] > 0}


async def _soak(server: Server, askings: list[Asking], seconds: float, told: Callable[..., object]) -> dict[str, Any]:
    """All verbs from 16 clients, and some that go away; memory is looked at sixty times."""
    rights = [await alone(server.port, asking) for asking in askings]
    tally, until, sizes = Tally(), after(seconds), list[int]()
    large = _body(sentences=sentences(30))

    async def look() -> None:
        while not until():
            await asyncio.sleep(seconds / 60)
            sizes.append(server.memory())
            told({"what": "soak so far", "MB": sizes[-1], **tally.statuses})

    async def trouble() -> None:
        while not until():
            await _bad_client(server.port, "gone", large)
            await asyncio.sleep(0.5)

    work: list[Awaitable[None]] = [look(), trouble()]
    for asking, right in zip(askings, rights, strict=True):
        work.append(crowd(server.port, asking, right, 16 // len(askings), until, tally))
    await asyncio.gather(*work)
    begin, end = statistics.median(sizes[10:20]), statistics.median(sizes[-10:])
    found = tally.summary() | {"seconds": seconds, "MB at a sixth": begin, "MB at the end": end, "most MB": max(sizes)}
    return found | {"ok": not tally.wrong and end < 1.05 * begin + 10}


def trained(folder: Path, kind: str, file: str, *more: str) -> Path:
    """A small model of a task, made of what ships."""
    out = folder / kind
    command = [sys.executable, "-m", "relmo", "train", kind, str(DATA / file), "--out", str(out), "--quiet"]
    subprocess.run([*command, "--epochs", "1", "--device", "cpu", *more], check=True, stdout=subprocess.DEVNULL)
    return out


def original(folder: Path) -> Path:
    """A biLM of the size of the original ELMo, which has learned nothing."""
    import torch

    from relmo.config import build, read_preset
    from relmo.models.bilm import BiLM
    from relmo.networks.bilm import BiLMNetwork
    from relmo.settings.bilm import BiLMSettings

    torch.manual_seed(0)
    settings = build(BiLMSettings, read_preset("original", "bilm"))
    BiLM(BiLMNetwork(settings.model, vocab_size=None), settings).save_pretrained(folder / "original")
    return folder / "original"


def report(row: dict[str, Any]) -> None:
    print(json.dumps(row), flush=True)


def timed_askings(folder: Path, wanted: str) -> dict[str, Asking]:
    """Return the measurements whose names contain these words."""
    made: dict[str, Callable[[], Asking]] = {
        "embed, small": embedding,
        "embed, small, int8": lambda: embedding("--precision", "int8"),
        "embed, original size": lambda: embedding()._replace(models=[str(original(folder))]),
        "predict, classifier": lambda: predicting(trained(folder, "classifier", "opinions.tsv")),
        "predict, tagger": lambda: predicting(trained(folder, "tagger", "names.iob2", "--preset", "ner")),
        "generate, prose, 100 symbols": lambda: Asking(["prose"], "generate", generating()),
    }
    return {name: make() for name, make in made.items() if wanted in name}


def generating() -> list[bytes]:
    return [_body(prompt=line[:8], limit=100, seed=seed, stream=False) for seed, line in enumerate(sentences(100))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["throughput", "overload", "clients", "ending", "kills", "soak"])
    parser.add_argument("--seconds", type=float, default=10, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--case", default="", help="of throughput: only what has this in its name")
    parser.add_argument("--soak", type=float, default=1800, help="seconds")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []

    def told(row: dict[str, Any]) -> None:
        rows.append(row)
        report(row)

    with tempfile.TemporaryDirectory() as scratch:
        folder, small = Path(scratch), embedding()
        if "throughput" in given.what:
            for row in throughput(timed_askings(folder, given.case), given.seconds, given.rounds, folder):
                told(row)
        if "overload" in given.what:
            with served(small, "--queue", str(QUEUE)) as server:
                told({"what": "overload"} | asyncio.run(_overload(server, small, given.seconds)))
        if "clients" in given.what:
            with served(small, "--seconds", "2") as server:
                told({"what": "clients"} | asyncio.run(_bad_clients(server, small, given.seconds)))
        if "ending" in given.what:
            slow = small._replace(bodies=[_body(sentences=sentences(40))])
            with served(slow, "--max-words", "8192") as server:
                told({"what": "ending"} | asyncio.run(_ending(server, slow)))
        if "kills" in given.what:
            told({"what": "kills"} | asyncio.run(_kills(small, 5)))
        if "soak" in given.what:
            tagger = predicting(trained(folder, "tagger", "names.iob2", "--preset", "ner"))
            askings = [small, Asking(["prose"], "generate", generating()[:20]), tagger]
            everything = Asking(["small", "prose", *tagger.models], "", [])
            with served(everything) as server:
                told({"what": "soak"} | asyncio.run(_soak(server, askings, given.soak, report)))
    sys.exit(not all(row["ok"] for row in rows))


if __name__ == "__main__":
    main()
