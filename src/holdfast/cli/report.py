"""`holdfast report`."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from tyro.conf import Positional, arg

from holdfast.cli._shared import BadInputError, check_writable, refused

if TYPE_CHECKING:
    from holdfast.report.page.content import Skipped


@dataclasses.dataclass(frozen=True)
class Report:
    """Put runs on one page that opens in a browser."""

    about: ClassVar[
        str
    ] = """Puts runs on one page that opens in a browser, from disk and without a \
network.

RUNS are folders that solve, train, stress, bench and reproduce wrote, or folders that hold such
folders. The page has learning curves, reward against cost, what stress left, certificates, the
worst-case kernel beside the nominal one, episodes to play on the map, configuration and versions.
Figures can be saved from it. A folder that is damaged, or that a newer version wrote, is left out,
and named.

With --serve the page is not written but served on this machine's own address, and follows runs while
they train, until Ctrl-C.

Examples:
  holdfast report runs
  holdfast report runs/gambler runs/train/point-gather-rcpo-radius-0.2 -o report.html
  holdfast report runs/train --serve

Exit codes: 0 done, 2 bad input, 130 interrupted while writing."""

    runs: Annotated[Positional[tuple[Path, ...]], arg(metavar="RUNS...")]
    """Folders of runs."""
    out: Annotated[Path, arg(metavar="FILE", aliases=["-o"])] = Path("report.html")
    """The page."""
    serve: bool = False
    """Serve the page and follow the runs, instead of writing it."""
    port: Annotated[int, arg(metavar="N")] = 0
    """With --serve, the port; 0 takes one that is free."""

    def run(self) -> int:
        """Writes the page, or serves it."""
        with refused():
            self._check()
        from holdfast.experiments.compilation_cache import use_compilation_cache

        use_compilation_cache()
        return self._serve() if self.serve else self._write()

    def _check(self) -> None:
        if not self.runs:
            raise ValueError("RUNS: name at least one folder of runs")
        for path in self.runs:
            if not path.is_dir():
                raise ValueError(f"{path}: not a folder")
        if not 0 <= self.port < 65536:
            raise ValueError(f"port: expected a number from 0 to 65535, got {self.port}")
        if self.port and not self.serve:
            raise ValueError("port: it goes with --serve")
        if not self.serve:
            if self.out.is_dir():
                raise ValueError(f"out: {self.out} is a folder, name a file in it")
            check_writable(self.out.parent)

    def _write(self) -> int:
        from holdfast.report.page import write_page

        with refused():
            skipped = write_page(self.runs, self.out)
        _warn(skipped)
        print(f"written to {self.out}")
        return 0

    def _serve(self) -> int:
        from holdfast.report.page.serve import Server

        try:
            server = Server(self.runs, self.port)
        except OSError as error:
            raise BadInputError(f"port: {self.port} cannot be used ({error.strerror})") from error
        with server:
            print(f"serving {server.address}, Ctrl-C ends it", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                server.serve_forever()
        return 0


def _warn(skipped: tuple[Skipped, ...]) -> None:
    for each in skipped:
        print(f"skipped {each.path}: {each.reason}", file=sys.stderr)
