"""`relmo serve MODEL…`"""

import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from relmo.cli.explore import link
from relmo.errors import SettingError
from relmo.settings.arguments import PathName
from relmo.settings.serving import ServeLimits

PACKAGES = ("starlette", "uvicorn", "msgspec")
INSTALL = f"relmo serve needs the packages {', '.join(PACKAGES)}; try: pip install 'relmo[serve]'"


def serve(
    models: Annotated[tuple[PathName, ...], Parameter(name="MODEL", negative=())],
    /,
    *,
    port: int = 8322,
    host: str = "127.0.0.1",
    token: Annotated[str | None, Parameter(env_var="RELMO_TOKEN")] = None,
    limits: Annotated[ServeLimits, Parameter(name="*", group="How much at once")] = ServeLimits(),  # noqa: B008
    precision: Literal["float32", "bfloat16", "int8"] = "float32",
    threads: int | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    quiet: bool = False,
) -> None:
    """Answer requests over HTTP with one or more models: embed, predict, surprisal and generate.

    Each model does what it can. Requests of many clients are computed together. The server runs until Ctrl-C or
    SIGTERM, and then finishes the requests it has accepted.

        relmo serve small

        relmo serve small models/ner moods=models/classifier --port 8000

        curl localhost:8322/embed -d '{"sentences": ["A bank lends money."], "layers": "top"}'

    Parameters
    ----------
    models
        Folders of models, or names of models that ship. Clients call a model by the name of its folder, or by the name
        before a =.
    port
        Where to listen; 0 takes any that is free.
    host
        The address to listen on. Any but this machine's own needs a --token.
    token
        A secret of 8 or more characters that requests must bring in the header Authorization: Bearer TOKEN. Other users
        of a machine can see its command lines. They cannot see the variable RELMO_TOKEN, which works too.
    precision
        Bidirectional models: bfloat16 is faster if the processor computes in it, int8 is faster on any CPU.
    threads
        Threads of the processor that one computation takes.
    device
        Where to compute; auto takes a GPU if there is one.
    quiet
        Print the address alone.
    """
    if not 0 <= port <= 65535:
        raise SettingError(f"--port is from 0 to 65535, not {port}")
    limits.check()
    try:
        from relmo.serve.server import make_app
        from relmo.web.connections import listen, make_server
        from relmo.web.guard import LOOPBACK, check_address
    except ModuleNotFoundError as error:
        if error.name not in PACKAGES:
            raise
        raise SettingError(INSTALL) from None
    check_address(host, token)
    listener = listen(host, port)  # clients that come meanwhile wait
    loaded = _load_all(models, device, precision, threads)
    app = make_app(loaded, limits, token=token, hosts=LOOPBACK if host in LOOPBACK else None)
    server = make_server(app, seconds=limits.seconds, most=limits.connections, grace=limits.grace)
    # for a signal before uvicorn's own handler is in place, and for the one that uvicorn raises again at the end
    signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))
    address = link(host, listener.getsockname()[1], None)
    print(address if quiet else f"serving {', '.join(loaded)} at {address}  (Ctrl-C ends it)", flush=True)
    server.run(sockets=[listener])
    if app.app.is_computing:  # interpreter shutdown would wait for, or crash, a thread inside of torch
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _load_all(models: tuple[str, ...], device: str, precision: str, threads: int | None) -> dict[str, Any]:
    """The models by the names that clients call them."""
    import torch

    from relmo.loading import load

    if threads is not None:
        torch.set_num_threads(threads)
    found: dict[str, Any] = {}
    for given in models:
        name, _, source = given.rpartition("=")
        name = name or Path(source).name
        if name in found:
            raise SettingError(f"two models are called {name}; name one of them: other={source}")
        found[name] = load(source, device=device)
        if found[name].kind == "bilm":
            found[name].precision = precision
    return found
