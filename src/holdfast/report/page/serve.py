"""Serves the page on this machine, and updates it while runs train."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import Any

from holdfast.report.page.collect import Kept, collect
from holdfast.report.page.render import page_data, render

# Seconds between two requests of the page for new data.
EVERY = 2.0
# Requests that are answered at the same time, and seconds that a client has for each of its messages.
_THREADS = 32
_PATIENCE = 10.0


class Server(ThreadingHTTPServer):
    """A server of the page at / and of its data at /data.json, for this machine only.

    Arguments:
        paths: folders of runs.
        port: port number; 0 selects a free one.
        every: seconds between two requests of the page for new data.

    Raises:
        ValueError: a path is not a folder.
        OSError: the port is taken.
    """

    daemon_threads = True
    # Connections that wait to be accepted; the default of 5 refuses a browser with several pages.
    request_queue_size = 1024

    def __init__(self, paths: Sequence[Path], port: int = 0, every: float = EVERY) -> None:
        self._paths, self._every = list(paths), every
        self._kept, self._lock = Kept(), Lock()
        self._slots = BoundedSemaphore(_THREADS)
        self._latest: tuple[float, dict[str, Any]] | None = None
        self.data()
        super().__init__(("127.0.0.1", port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a request in a thread, as soon as one is free."""
        self._slots.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a request and give its thread free."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of an error, unless the client has gone or is too slow."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        """Address for a browser."""
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def data(self) -> dict[str, Any]:
        """Return the current data; runs whose files have not changed are not read again."""
        asked = time.monotonic()
        with self._lock:
            # Requests that waited for each other share data that was read after they were made.
            if self._latest is None or self._latest[0] < asked:
                began = time.monotonic()
                found = page_data(collect(self._paths, self._kept), follow_every=self._every)
                self._latest = began, found
            return self._latest[1]


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = _PATIENCE

    def do_GET(self) -> None:
        """Answer with the page or with its data."""
        # Guards against DNS rebinding: a site whose name resolves to this machine must not read runs.
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        if host not in ("127.0.0.1", "localhost"):
            self.send_error(HTTPStatus.FORBIDDEN)
        elif self.path == "/":
            self._send("text/html; charset=utf-8", render(self.server.data()))
        elif self.path == "/data.json":
            text = json.dumps(self.server.data(), ensure_ascii=False, allow_nan=False)
            self._send("application/json", text)
        elif self.path == "/favicon.ico":
            self.send_response(HTTPStatus.NO_CONTENT)
            self.end_headers()
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _send(self, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing: the terminal is for messages to the user."""
