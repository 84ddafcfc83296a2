"""The entry point of the command line: find the subcommand, run it, return its exit code.

A command imports heavy packages only when it runs, so that `--help` answers at once.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Union

from holdfast import __version__
from holdfast._support.files import WriteError
from holdfast.cli import _shared
from holdfast.cli._shared import BadInputError, Command, FailedError
from holdfast.cli.audit import AuditCommand
from holdfast.cli.bench import BenchCommand
from holdfast.cli.certify import CertifyCommand
from holdfast.cli.check import CheckCommand
from holdfast.cli.fit import FitCommand
from holdfast.cli.report import ReportCommand
from holdfast.cli.reproduce import ReproduceCommand
from holdfast.cli.solve import SolveCommand
from holdfast.cli.stress import StressCommand
from holdfast.cli.sweep import SweepCommand
from holdfast.cli.train import TrainCommand

COMMANDS: dict[str, type[Command]] = {
    "reproduce": ReproduceCommand,
    "fit": FitCommand,
    "solve": SolveCommand,
    "certify": CertifyCommand,
    "check": CheckCommand,
    "sweep": SweepCommand,
    "train": TrainCommand,
    "stress": StressCommand,
    "audit": AuditCommand,
    "bench": BenchCommand,
    "report": ReportCommand,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Find policies that keep their constraints under model error.

    Start with one of:
      holdfast reproduce gambler --seeds 1
      holdfast fit log.csv --state condition --action decision --time week --signal profit=profit
      holdfast solve gambler --out runs/gambler
      holdfast certify gambler runs/gambler --proof proof.json
      holdfast check proof.json gambler
      holdfast sweep gambler --limit utility=1,2,3
      holdfast train point-gather --algorithm rcpo --radius 0.2 --cost-limit 0.1 --seeds 5
      holdfast stress runs/train/point-gather-rcpo-radius-0.2
      holdfast audit policy.onnx --env point-gather --radius 0.05 --cost-limit 0.1
      holdfast bench paper --seeds 1
      holdfast report runs -o report.html

    `holdfast COMMAND --help` explains a command; `holdfast --version` prints the version.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _shared.CLOSED_PIPE


def _run(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        print(f"holdfast {__version__}")
        return 0
    command = _parse(arguments)
    # Names such as mine:model may be in a file of the working directory.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        return command.run()
    except BadInputError as error:
        message = _shared.in_options(str(error), _shared.options_of(command))
        print(f"holdfast: {message}", file=sys.stderr)
        return _shared.BAD_INPUT
    except WriteError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        print(
            "The files written so far are complete. Run the same command to resume.",
            file=sys.stderr,
        )
        return _shared.NOT_WRITTEN
    except FailedError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return _shared.FAILED
    except KeyboardInterrupt:
        print("Interrupted. Run the same command to resume.", file=sys.stderr)
        return _shared.INTERRUPTED


def _parse(arguments: list[str]) -> Command:
    import tyro

    if arguments and arguments[0] in COMMANDS:
        command = COMMANDS[arguments[0]]
        return tyro.cli(
            command,
            prog=f"holdfast {arguments[0]}",
            description=inspect.getdoc(command),
            args=arguments[1:],
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    # Only prints help or an error, since all subcommands are handled above.
    choices: list[Any] = []
    for name, command in COMMANDS.items():
        summary = inspect.cleandoc(str(command.__doc__)).splitlines()[0]
        choices.append(Annotated[command, tyro.conf.subcommand(name, description=summary)])
    every: Any = Union[*choices]
    return tyro.cli(every, prog="holdfast", description=inspect.getdoc(main), args=arguments)
