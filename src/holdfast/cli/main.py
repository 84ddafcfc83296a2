"""The command line: finds the subcommand, runs it, and turns what went wrong into an exit code.

Nothing heavy is imported until a command runs, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from holdfast import __version__
from holdfast.cli._shared import (
    BAD_INPUT,
    FAILED,
    INTERRUPTED,
    BadInputError,
    Command,
    FailedError,
)
from holdfast.cli.bench import Bench
from holdfast.cli.certify import Certify
from holdfast.cli.report import Report
from holdfast.cli.reproduce import Reproduce
from holdfast.cli.solve import Solve
from holdfast.cli.stress import Stress
from holdfast.cli.train import Train

_ABOUT = """Policies that keep their constraints when the world is not the model.

Start with one of:
  holdfast reproduce gambler --seeds 1
  holdfast solve gambler --out runs/gambler
  holdfast certify gambler runs/gambler
  holdfast train point-gather --algorithm rcpo --radius 0.2 --cost-limit 0.1 --seeds 5
  holdfast stress runs/train/point-gather-rcpo-radius-0.2
  holdfast bench paper --seeds 1
  holdfast report runs -o report.html

`holdfast COMMAND --help` teaches a command; `holdfast --version` prints the version."""

COMMANDS: dict[str, type[Command]] = {
    "reproduce": Reproduce,
    "solve": Solve,
    "certify": Certify,
    "train": Train,
    "stress": Stress,
    "bench": Bench,
    "report": Report,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and gives its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:
        print(f"holdfast {__version__}")
        return 0
    try:
        return _parse(arguments).run()
    except BadInputError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return BAD_INPUT
    except FailedError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("Interrupted: the same command goes on from what is on disk.", file=sys.stderr)
        return INTERRUPTED


def _parse(arguments: list[str]) -> Command:
    import tyro

    if arguments and arguments[0] in COMMANDS:
        command = COMMANDS[arguments[0]]
        return tyro.cli(
            command,
            prog=f"holdfast {arguments[0]}",
            description=command.about,
            args=arguments[1:],
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    # Only ever prints help or refuses: every subcommand was taken care of above.
    return tyro.extras.subcommand_cli_from_dict(
        dict(COMMANDS), prog="holdfast", description=_ABOUT, args=arguments
    )
