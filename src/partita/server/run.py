"""Runs the application until a signal: then nothing new is taken, what is running ends, and so does it."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

import uvicorn

from partita.errors import InputError
from partita.server.app import create_app
from partita.server.request_log import LOG
from partita.server.service import Service


class _Server(uvicorn.Server):
    """The first signal drains the loop, the second ends the process with its connections."""

    def __init__(self, config: uvicorn.Config, service: Service):
        super().__init__(config)
        self._loop, self._draining = service.loop, False

    def handle_exit(self, sig: int, frame: Any) -> None:
        if self._draining:
            self.should_exit = self.force_exit = True
            return
        self._draining = True
        self._loop.stop()


def serve(
    service: Service,
    host: str,
    port: int,
    api_keys: tuple[str, ...],
    most_bytes: int,
    tell: Callable[[str], None],
) -> None:
    """Serves until SIGTERM or SIGINT. `tell` is given the address once requests are taken.

    Raises InputError (field "port") for an address that cannot be had, and what the engine's thread ended by.
    """
    taken = _socket(host, port)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    config = uvicorn.Config(
        create_app(service, api_keys, most_bytes), log_level="warning", access_log=False, lifespan="off"
    )
    server = _Server(config, service)

    def watch() -> None:
        with contextlib.suppress(BaseException):  # which is raised below
            service.loop.wait()
            shown = f"[{host}]" if ":" in host else host
            tell(f"http://{shown}:{taken.getsockname()[1]}/v1")
        service.loop.join()  # when it has been stopped, or has failed for good
        server.should_exit = True

    service.loop.start()
    threading.Thread(target=watch, daemon=True).start()
    try:
        server.run(sockets=[taken])
    finally:
        taken.close()
    if service.loop.error is not None:
        raise service.loop.error


def _socket(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.socket(family)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError("port", f"{host}:{port}", f"cannot be listened on: {reason}") from None
    return found
