"""`relmo explore [MODEL] [TEXT]`"""

import gc
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlencode

from cyclopts import Parameter

from relmo.cli.output import Overwrite
from relmo.cli.sources import Tokenizer
from relmo.cli.terminal import say, share_bar
from relmo.disk.outputs import refuse_existing
from relmo.errors import SettingError
from relmo.settings.arguments import PathName

if TYPE_CHECKING:
    from relmo.explorer.align import AlignSession
    from relmo.explorer.extras import Extras
    from relmo.explorer.session import Session

INSTALL = "relmo explore needs the packages starlette and uvicorn; try: pip install 'relmo[explore]'"
FIRST = "prose"


@dataclass(frozen=True, kw_only=True)
class More:
    """What the page has beside the model."""

    beside: tuple[str, ...] = ()
    """Another model, or a folder of models, such as the checkpoints of a run: to compare with, and to see when a
    unit appeared. For a trained task with ELMo its mix of layers is shown. A model that translates takes another
    such model."""
    train: Path | None = None
    """The text that the model was trained on: the page shows what samples have copied from it."""
    data: Path | None = None
    """A folder with minimal pairs: BLiMP's .jsonl, Lakretz's .txt, Linzen's .gold, .tab, or .csv of your own. The
    default is the folder that RELMO_DATA names, or data/ here."""
    figures: Path | None = None
    """What relmo analyse meaning --measure printed with --json: parts of speech and senses by layer."""

    def extras(self, device: str, tokenizer: Literal["words", "whitespace"] | None) -> "Extras":
        """All of it, checked."""
        from relmo.explorer.extras import Extras
        from relmo.reproduce.data import data_folder

        data = self.data or (usual if (usual := data_folder()).is_dir() else None)
        found = Extras.of(self.beside, train=self.train, data=data, figures=self.figures, device=device)
        found.tokenizer = tokenizer
        return found

    def only_beside(self) -> tuple[str, ...]:
        """Other models alone, which is all that a model that translates has beside it."""
        for option in ("train", "data", "figures"):
            if getattr(self, option) is not None:
                raise SettingError(f"--{option} goes with a language model, not with one that translates")
        return self.beside


def explore(
    model: PathName | None = None,
    text: PathName | None = None,
    *,
    more: Annotated[More, Parameter(name="*", group="Beside the model")] = More(),
    port: int = 8321,
    host: str = "127.0.0.1",
    token: str | None = None,
    export: Path | None = None,
    overwrite: Overwrite = False,
    browser: bool = True,
    tokenizer: Tokenizer = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    quiet: bool = False,
) -> None:
    """Look into a model in a browser: its units over a text, what they stand for, and how far back it remembers.

    For a sequence-to-sequence model the page shows what it writes, and what it looks at while it writes. Only this
    machine can open the page. Ctrl-C ends it.

        relmo explore

        relmo explore models/mine book.txt

        relmo explore models/epoch-9 book.txt --beside models/epoch-1 --beside models/epoch-3 --train train.txt

        relmo explore code --export page.html

        relmo explore models/translate val.tsv --beside models/fixed

    Parameters
    ----------
    model
        The folder of a language model, bidirectional or not; of a sequence-to-sequence model; or of a trained task with
        ELMo, whose model is looked into; or one that ships: prose, code, hello, english-french, small. Without one,
        prose is opened, and the page offers the others. An n-gram or feed-forward model can be seen writing.
    text
        A file to look at: plain text, source code, or .conllu; - for standard input. There are others in the page, and
        room for your own. For a sequence-to-sequence model it is a file of pairs, as relmo train seq2seq takes them.
    port
        Where to listen; 0 takes any that is free.
    host
        The address to listen on. Any but this machine's own needs a --token.
    token
        A secret of 8 or more characters that requests must bring; the address that is printed carries it.
    export
        Write one self-contained page to this .html file, with what was found in the text, and open nothing.
    browser
        Open a browser.
    device
        Where to compute; auto takes a GPU if there is one.
    quiet
        Print the address alone, and no progress.
    """
    if export is not None:
        if export.suffix.lower() not in (".html", ".htm"):
            raise SettingError(f"{export}: the name of the page must end in .html")
        from relmo.explorer.align import is_seq2seq

        refuse_existing(export, overwrite=overwrite)
        name = model or FIRST
        _write(opened(name, text, device, more if is_seq2seq(name) else None, tokenizer), export, quiet=quiet)
        return
    if not 0 <= port <= 65535:
        raise SettingError(f"--port is from 0 to 65535, not {port}")
    try:
        from relmo.explorer.server import Models, make_app
        from relmo.web.connections import listen, make_server
        from relmo.web.guard import LOOPBACK, check_address
    except ImportError:
        raise SettingError(INSTALL) from None
    check_address(host, token)
    names = _offered(model)
    models = Models(names, lambda name: opened(name, text, device, more, tokenizer, first=name == names[0]))
    app = make_app(models, token=token, hosts=LOOPBACK if host in LOOPBACK else None)
    listener = listen(host, port)
    address = link(host, listener.getsockname()[1], token)
    _serve(make_server(app), listener, models, address, browser=browser)


def _offered(model: str | None) -> list[str]:
    """The models that the page can open, the first one first."""
    from relmo.explorer.examples import shipped

    names = shipped()
    first = model or (FIRST if FIRST in names else "small")
    return list(dict.fromkeys([first, *names]))


def opened(
    name: str,
    text: str | None,
    device: str,
    more: More | None = None,
    tokenizer: Literal["words", "whitespace"] | None = None,
    *,
    first: bool = True,
) -> "Session | AlignSession":
    """A session with a model, with more beside; a text, and a way to split it, are for the first model alone."""
    from relmo.explorer.align import AlignSession, is_seq2seq
    from relmo.explorer.session import Session

    given, split = (text, tokenizer) if first else (None, None)
    if is_seq2seq(name):
        beside = more.only_beside() if more is not None and first else ()
        return AlignSession.open(name, given, beside=beside, device=device, tokenizer=split)
    session = Session.open(name, device=device, tokenizer=split)
    if more is not None:
        learnt, session.extras = session.extras.learnt, more.extras(device, split)
        session.extras.learnt |= learnt
    if given is not None:
        session.give_file(given)
    return session


def _write(session: "Session | AlignSession", path: Path, *, quiet: bool) -> None:
    from relmo.explorer.page import write_page

    with share_bar("looking into the model", quiet=quiet) as progress:
        note = write_page(session, path, progress)
    if not quiet:
        say(f"{path}: {note}")


def _serve(server: Any, listener: Any, models: Any, address: str, *, browser: bool) -> None:
    """Listens until Ctrl-C; the first model is opened meanwhile, and where that fails there is nothing to show."""
    failed: list[BaseException] = []

    def prepare() -> None:
        try:
            models.get("").answer("about", {"opening": "1"})
        except BaseException as error:
            failed.append(error)
            server.should_exit = True
        finally:
            gc.freeze()
            gc.enable()

    gc.disable()  # while torch is imported, whose many objects it would look through time and again
    threading.Thread(target=prepare, daemon=True).start()
    print(f"exploring at {address}  (Ctrl-C ends it)", flush=True)
    if browser:
        import webbrowser

        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    server.run(sockets=[listener])
    if failed:
        raise failed[0]


def link(host: str, port: int, token: str | None) -> str:
    """The address of the page, with the token where there is one."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}/" + ("?" + urlencode({"token": token}) if token else "")
