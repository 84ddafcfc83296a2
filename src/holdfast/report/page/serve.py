"""The page on this machine's own address, following runs while they train."""

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

EVERY = 2.0  # seconds between two looks


class Server(ThreadingHTTPServer):
    """Serves the page at / and what it shows at /data.json, to this machine only.

    Arguments:
        paths: folders of runs.
        port: 0 takes one that is free.
        every: seconds between two looks of the page.

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
        """Where a browser finds it."""
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def data(self) -> dict[str, Any]:
        """What the page shows now; runs whose files have not changed are not read again."""
        with self._lock:
            return page_data(collect(self._paths, self._kept), follow_every=self._every)


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        """Answers with the page, with its data, or with nothing."""
        # Another site that has its name lead here would ask for that name, and must not read runs.
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
        """Nothing: the terminal is for what the user should know."""
