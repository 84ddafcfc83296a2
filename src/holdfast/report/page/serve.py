"""Serves the page on this machine, and updates it while runs train."""

from __future__ import annotations

import json
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from holdfast.report.page.collect import Kept, collect
from holdfast.report.page.render import page_data, render

# Seconds between two requests of the page for new data.
EVERY = 2.0


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

    def __init__(self, paths: Sequence[Path], port: int = 0, every: float = EVERY) -> None:
        self._paths, self._every = list(paths), every
        self._kept, self._lock = Kept(), Lock()
        self.data()
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def address(self) -> str:
        """Address for a browser."""
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def data(self) -> dict[str, Any]:
        """Return the current data; runs whose files have not changed are not read again."""
        with self._lock:
            return page_data(collect(self._paths, self._kept), follow_every=self._every)


class _Handler(BaseHTTPRequestHandler):
    server: Server

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
