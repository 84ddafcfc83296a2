from __future__ import annotations

import socket

import pytest

from holdfast.cli import main as cli
from holdfast.report.page import serve

from .conftest import train_folder


@pytest.fixture
def main(monkeypatch, tmp_path):
    """The command line in an empty folder; JAX's settings in this process stay as they are."""
    monkeypatch.chdir(tmp_path)
    return lambda command: cli.main(command.split())


def test_it_writes_the_page_and_names_what_it_skipped(main, gather_run, tmp_path, capsys):
    train_folder(tmp_path / "runs" / "run", gather_run, 2)
    (tmp_path / "runs" / "damaged").mkdir()
    (tmp_path / "runs" / "damaged" / "solution.json").write_text("")
    assert main("report runs") == 0
    printed = capsys.readouterr()
    assert printed.out == "written to report.html\n"
    assert printed.err.startswith("skipped runs/damaged: solution.json: damaged")
    assert "point-gather" in (tmp_path / "report.html").read_text()
    assert main("report runs/run -o sub/other.html") == 0
    assert (tmp_path / "sub" / "other.html").is_file()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("report nothing", "nothing: not a folder"),
        ("report", "RUNS: expected at least one folder"),
        ("report empty", "empty: no run to show"),
        ("report empty --port 8000", "port: allowed only with --serve"),
        ("report empty --serve --port 70000", "port: expected a number from 0 to 65535"),
        ("report empty -o empty", "out: empty is a folder"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(main, command, said, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert main(command) == 2
    assert said in capsys.readouterr().err


def test_a_port_that_is_taken_is_refused(main, tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(f"report . --serve --port {port}") == 2
    assert f"port: {port} cannot be used" in capsys.readouterr().err


def test_serving_says_where_and_ends_with_ctrl_c(main, monkeypatch, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(serve.Server, "serve_forever", interrupted)
    assert main("report . --serve") == 0
    assert "serving http://127.0.0.1:" in capsys.readouterr().out
