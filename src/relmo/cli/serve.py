"""`relmo serve MODEL…`"""

import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from relmo.cli.explore import make_url
from relmo.cli.options import Device
from relmo.errors import SettingError
from relmo.settings.arguments import PathName
from relmo.settings.options import ServeLimits

PACKAGES = ("starlette", "uvicorn", "msgspec")
INSTALL = f"relmo serve needs the packages {', '.join(PACKAGES)}; try: pip install 'relmo[serve]'"


def serve(
    models: Annotated[tuple[PathName, ...], Parameter(name="MODEL", negative=())],
    /,
    *,
    port: int = 8322,
    host: str = "127.0.0.1",
    token: Annotated[str | None, Parameter(env_var="RELMO_TOKEN")] = None,
    limits: Annotated[ServeLimits, Parameter(name="*", group="Limits")] = ServeLimits(),  # noqa: B008
    precision: Literal["float32", "bfloat16", "int8"] = "float32",
    threads: int | None = None,
    device: Device = "auto",
    quiet: bool = False,
) -> None:
    """Serve one or more models over HTTP: embed, predict, surprisal and generate.

    Each model has the endpoints that its kind allows. Requests of many clients are batched. On Ctrl-C or SIGTERM the
    server finishes the requests it has accepted.

        relmo serve small

        relmo serve small models/ner moods=models/classifier --port 8000

        curl localhost:8322/embed -d '{"sentences": ["A bank lends money."], "layers": "top"}'

    Parameters
    ----------
    models
        Model folders or names of bundled models. Requests name a model by its folder name, or as in NAME=FOLDER.
    port
        The port to listen on; 0 for any free one.
    host
        The address to listen on. Addresses other than loopback need a --token.
    token
        A secret of 8 or more characters that requests must carry in the header Authorization: Bearer TOKEN. Prefer the
        environment variable RELMO_TOKEN: other users of the machine can see command lines.
    precision
        Bidirectional models: bfloat16 is faster on processors that support it, int8 on any CPU.
    threads
        Number of CPU threads per computation.
    quiet
        Print only the address.
    """
    if not 0 <= port <= 65535:
        raise SettingError(f"--port must be from 0 to 65535, not {port}")
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
    listener = listen(host, port)  # clients that connect meanwhile wait
    loaded = _load_all(models, device, precision, threads)
    app = make_app(loaded, limits, token=token, hosts=LOOPBACK if host in LOOPBACK else None)
    server = make_server(app, seconds=limits.seconds, max_connections=limits.connections, grace=limits.grace)
    # for signals before uvicorn installs its handler, and for the one that uvicorn raises again at the end
    signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))
    address = make_url(host, listener.getsockname()[1], None)
    print(address if quiet else f"serving {', '.join(loaded)} at {address}  (press Ctrl-C to stop)", flush=True)
    server.run(sockets=[listener])
    if app.app.is_computing:  # interpreter shutdown would wait for a thread inside torch, or crash
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _load_all(models: tuple[str, ...], device: str, precision: str, threads: int | None) -> dict[str, Any]:
    """Load models by their names in requests."""
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
    return loaded
