"""A service that listens on a real socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from partita.server.app import create_app
from partita.server.service import Service


@contextmanager
def listening(service: Service) -> Iterator[str]:
    """Serves over a real socket while it lasts; gives the address."""
    config = uvicorn.Config(create_app(service, ["secret"]), log_level="critical", lifespan="off")
    server, taken = uvicorn.Server(config), socket.socket()
    taken.bind(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]})
    thread.start()
    yield f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
    server.should_exit = True
    thread.join()
