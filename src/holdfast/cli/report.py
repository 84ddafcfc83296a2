"""`holdfast report`."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from holdfast.cli._shared import BadInputError, check_writable, refused


@dataclasses.dataclass(frozen=True)
class ReportCommand:
    """Put runs on one HTML page that opens in a browser without a network.

    RUNS are folders that solve, train, stress, bench and reproduce wrote, or folders that contain such
    folders. The page shows learning curves, reward against cost, stress tests, certificates, the
    worst-case kernel beside the nominal one, episodes on the map, configurations and versions. Figures
    can be saved from it. Folders that are damaged, or that a newer version wrote, are skipped and named.

    With --serve the page is served on this machine and follows runs while they train, until Ctrl-C.

    Examples:
      holdfast report runs
      holdfast report runs/gambler runs/train/point-gather-rcpo-radius-0.2 -o report.html
      holdfast report runs/train --serve

    Exit codes: 0 done, 2 bad input, 4 a file could not be written, 130 interrupted while writing.
    """

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUNS...")]
    """Folders of runs, searched recursively."""
    out: Annotated[Path, arg(metavar="FILE", aliases=["-o"])] = Path("report.html")
    """HTML file to write."""
    serve: bool = False
    """Serve the page and follow the runs, instead of writing a file."""
    port: Annotated[int, arg(metavar="N")] = 0
    """Port for --serve; 0 takes a free one."""

    def run(self) -> int:
        """Write the page, or serve it."""
        with refused():
            self._check()

        return self._serve() if self.serve else self._write()

    def _check(self) -> None:
        if not self.runs:
            raise ValueError("RUNS: expected at least one folder")
        for path in self.runs:
            if not path.is_dir():
                raise ValueError(f"{path}: not a folder")
        if not 0 <= self.port < 65536:
            raise ValueError(f"port: expected a number from 0 to 65535, got {self.port}")
        if self.port and not self.serve:
            raise ValueError("port: allowed only with --serve")
        if not self.serve:
            if self.out.is_dir():
                raise ValueError(f"out: {self.out} is a folder; expected a file")
            check_writable(self.out.parent)

    def _write(self) -> int:
        from holdfast.report.page import write_page

        with refused():
            skipped = write_page(self.runs, self.out)
        for each in skipped:
            print(f"skipped {each.path}: {each.reason}", file=sys.stderr)
        print(f"written to {self.out}")
        return 0

    def _serve(self) -> int:
        from holdfast.report.page.serve import Server

        try:
            server = Server(self.runs, self.port)
        except OSError as error:
            raise BadInputError(f"port: {self.port} cannot be used ({error.strerror})") from error
        with server:
            print(f"serving {server.address}, press Ctrl-C to stop", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                server.serve_forever()
        return 0
