"""`relmo explore [MODEL] [TEXT]` and `relmo serve MODEL…`"""

import gc
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

from cyclopts import Parameter
from msgspec import Meta

from relmo.cli.options import Device, Overwrite, Tokenizer, check_out
from relmo.cli.terminal import print_message, progress_bar
from relmo.errors import SettingError, optional_import
from relmo.settings.fields import MAX_THREADS, FrozenSettings, PathName
from relmo.settings.options import ServeLimits

DEFAULT_MODEL = "prose"
Port = Annotated[int, Meta(ge=0, le=65535), Parameter(help="The port to listen on; 0 for any free one.")]
Host = Annotated[str, Parameter(help="The address to listen on. Addresses other than loopback need a --token.")]


class Companions(FrozenSettings):
    """Other models and data that the explorer shows with the model."""

    beside: tuple[str, ...] = ()
    """Another model, or a folder of models, such as the checkpoints of a run, to compare with and to see when a unit
    appeared. For a task with ELMo, its layer weights are shown. A sequence-to-sequence model can be compared with
    another one only."""
    train: Path | None = None
    """The training text of the model: shows which parts of samples are copied from it."""
    data: Path | None = None
    """A folder with minimal pairs: BLiMP's .jsonl, Lakretz's .txt, Linzen's .gold, .tab, or your own .csv. By default
    the folder in RELMO_DATA, or ./data."""
    figures: Path | None = None
    """Output of python -m experiments pos wsd --json, in a clone: parts of speech and senses by layer."""


def explore(
    model: PathName | None = None,
    text: PathName | None = None,
    *,
    companions: Annotated[Companions, Parameter(name="*", group="Companions")] = Companions(),
    port: Port = 8321,
    host: Host = "127.0.0.1",
    token: str | None = None,
    export: Path | None = None,
    overwrite: Overwrite = False,
    browser: bool = True,
    tokenizer: Tokenizer = None,
    device: Device = "auto",
    quiet: bool = False,
) -> None:
    """Explore a model in a browser: its units over a text, what they represent, and how far back it remembers.

    For a sequence-to-sequence model, the page shows its outputs and its attention. By default only this machine can
    open the page. Ctrl-C stops the server.

        relmo explore
        relmo explore models/mine book.txt
        relmo explore models/epoch-9 book.txt --beside models/epoch-1 --beside models/epoch-3 --train train.txt
        relmo explore code --export page.html
        relmo explore models/translate val.tsv --beside models/fixed

    Args:
        model: The folder of a language model, bidirectional or not; of a sequence-to-sequence model; of a task with
            ELMo, to explore its biLM; or a bundled model: prose, code, hello, english-french, small. By default prose;
            the page offers the others. Of n-gram and feed-forward models, only the generated text is shown.
        text: A text to explore: plain text, source code, or .conllu; - for standard input. The page has other texts,
            and a field for your own. For a sequence-to-sequence model, a file of pairs as for relmo train seq2seq.
        token: A secret of 8 or more characters that requests must carry; the printed address contains it.
        export: Write a self-contained page with the results for the text to this .html file, and start no server.
        browser: Open a browser.
        quiet: Print only the address, and no progress.
    """
    if export is not None:
        from relmo.explorer.align import is_seq2seq
        from relmo.explorer.page import write_page

        check_out(export, (".html", ".htm"), overwrite=overwrite)
        name = model or DEFAULT_MODEL
        session = open_session(name, text, device, companions if is_seq2seq(name) else None, tokenizer)
        with progress_bar("analysing the model", quiet=quiet) as on_progress:
            note = write_page(session, export, on_progress)
        if not quiet:
            print_message(f"{export}: {note}")
        return
    with optional_import("relmo explore needs the packages starlette and uvicorn", "explore"):
        from relmo.explorer.examples import list_models
        from relmo.explorer.server import Models, make_app
        from relmo.web.connections import listen, make_server
        from relmo.web.guard import LOOPBACK, check_address
    check_address(host, token)
    names = [model.name for model in list_models()]
    default = model or (DEFAULT_MODEL if DEFAULT_MODEL in names else "small")
    models = Models(
        list(dict.fromkeys([default, *names])),
        lambda name: open_session(name, text, device, companions, tokenizer, is_default=name == default),
    )
    app = make_app(models, token=token, hosts=LOOPBACK if host in LOOPBACK else None)
    listener = listen(host, port)
    address = make_url(host, listener.getsockname()[1], token)
    _run_server(make_server(app), listener, models, address, browser=browser)


def open_session(
    name: str,
    text: str | None,
    device: str,
    companions: Companions | None = None,
    tokenizer: Literal["words", "whitespace"] | None = None,
    *,
    is_default: bool = True,
) -> Any:
    """Open a session with a model. Text, tokenizer and companions of a seq2seq model are for the default model only."""
    from relmo.explorer.align import AlignSession, is_seq2seq
    from relmo.explorer.extras import Extras, data_folder
    from relmo.explorer.session import Session

    if not is_default:
        text = tokenizer = None
    if is_seq2seq(name):
        sources: tuple[str, ...] = ()
        if companions is not None and is_default:
            sources = companions.beside
            for option in ("train", "data", "figures"):
                if getattr(companions, option) is not None:
                    raise SettingError(f"--{option} needs a language model, not a sequence-to-sequence model.")
        return AlignSession.open(name, text, companions=sources, device=device, tokenizer=tokenizer)
    session = Session.open(name, device=device, tokenizer=tokenizer)
    if companions is not None:
        data = companions.data or (folder if (folder := data_folder()).is_dir() else None)
        extras = Extras(companions.beside, train=companions.train, data=data, figures=companions.figures, device=device)
        extras.tokenizer = tokenizer
        extras.layer_mixes |= session.extras.layer_mixes
        session.extras = extras
    if text is not None:
        session.texts.set_file(text)
    return session


def _run_server(server: Any, listener: Any, models: Any, address: str, *, browser: bool) -> None:
    """Serve until Ctrl-C. The default model is opened meanwhile; if that fails, its error is raised."""
    errors: list[BaseException] = []

    def open_default() -> None:
        try:
            models.get("").answer("about", {"opening": "1"})
        except BaseException as error:
            errors.append(error)
            server.should_exit = True
        finally:
            gc.freeze()
            gc.enable()

    gc.disable()  # importing torch creates many objects, which would be scanned again and again
    threading.Thread(target=open_default, daemon=True).start()
    print(f"exploring at {address}  (press Ctrl-C to stop)", flush=True)
    if browser:
        import webbrowser

        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    server.run(sockets=[listener])
    if errors:
        raise errors[0]


def make_url(host: str, port: int, token: str | None) -> str:
    """Return the address of a server, with the token if there is one."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/" + ("?" + urlencode({"token": token}) if token else "")


def serve(
    models: Annotated[tuple[PathName, ...], Parameter(name="MODEL", negative=())],
    /,
    *,
    port: Port = 8322,
    host: Host = "127.0.0.1",
    token: Annotated[str | None, Parameter(env_var="RELMO_TOKEN")] = None,
    limits: Annotated[ServeLimits, Parameter(name="*", group="Limits")] = ServeLimits(),
    precision: Literal["float32", "bfloat16", "int8"] = "float32",
    threads: Annotated[int, Meta(ge=1, le=MAX_THREADS)] | None = None,
    device: Device = "auto",
    quiet: bool = False,
) -> None:
    """Serve one or more models over HTTP: embed, predict, surprisal and generate.

    Each model has the endpoints that its kind allows. Requests of many clients are batched. On Ctrl-C or SIGTERM the
    server finishes the requests it has accepted.

        relmo serve small
        relmo serve small models/ner moods=models/classifier --port 8000
        curl localhost:8322/embed -d '{"sentences": ["A bank lends money."], "layers": "top"}'

    Args:
        models: Model folders or bundled models. Requests name a model by its folder name, or as in NAME=FOLDER.
        token: A secret of 8 or more characters that requests must carry in the header Authorization: Bearer TOKEN.
            Prefer the environment variable RELMO_TOKEN: other users of the machine can see command lines.
        precision: Bidirectional models: bfloat16 is faster on processors that support it, int8 on any CPU.
        threads: Number of CPU threads per computation.
        quiet: Print only the address.
    """
    limits.check()
    with optional_import("relmo serve needs the packages starlette and uvicorn", "serve"):
        from relmo.serve.server import make_app
        from relmo.web.connections import listen, make_server
        from relmo.web.guard import LOOPBACK, check_address
    check_address(host, token)
    listener = listen(host, port)  # clients that connect meanwhile wait
    import torch

    from relmo.loading import load

    if threads is not None:
        torch.set_num_threads(threads)
    loaded: dict[str, Any] = {}
    for argument in models:
        name, _, source = argument.rpartition("=")
        name = name or Path(source).name
        if name in loaded:
            raise SettingError(f"Two models have the name {name}; rename one of them: other={source}")
        loaded[name] = load(source, device=device)
        if hasattr(loaded[name], "precision"):
            loaded[name].precision = precision
    app = make_app(loaded, limits, token=token, hosts=LOOPBACK if host in LOOPBACK else None)
    server = make_server(app, seconds=limits.seconds, max_connections=limits.connections, grace=limits.grace)
    # for signals before uvicorn installs its handler, and for the one that uvicorn raises again at the end
    signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))
    address = make_url(host, listener.getsockname()[1], None)
    print(address if quiet else f"serving {', '.join(loaded)} at {address}  (press Ctrl-C to stop)", flush=True)
    server.run(sockets=[listener])
    service: Any = app.app
    if any(worker.thread.is_alive() for worker in service.workers):
        # interpreter shutdown would wait for a thread inside torch, or crash
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
