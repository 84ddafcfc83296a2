"""Files on full disks, after kills, and under two processes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from holdfast._support import files
from holdfast._support.files import WriteError, atomic_write, locked, write_json, write_text
from holdfast.cli.main import main
from holdfast.cli.train import TrainCommand


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_named_with_the_path_and_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match=r"a\.json: cannot be written \(No space left on device\)"):
        write_json(path, {"a": 2})
    assert '"a": 1' in path.read_text()
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_removed_by_the_next_write(tmp_path):
    script = (
        "import os, sys; from holdfast._support.files import atomic_write\n"
        "with atomic_write(sys.argv[1]) as file:\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), 9)"
    )
    path = tmp_path / "a.txt"
    subprocess.run([sys.executable, "-c", script, path], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    write_text(path, "whole")
    assert list(tmp_path.iterdir()) == [path]
    subprocess.run([sys.executable, "-c", script, path], check=False)
    files.remove_unfinished(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_being_written_is_not_removed(tmp_path):
    with atomic_write(tmp_path / "a.txt") as file:
        file.write(b"one")
        write_text(tmp_path / "a.txt", "two")
        files.remove_unfinished(tmp_path)
    assert (tmp_path / "a.txt").read_text() == "one"
    assert len(list(tmp_path.iterdir())) == 1


def test_names_are_synced_with_their_files(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(files, "sync_folder", synced.append)
    write_text(tmp_path / "new" / "inner" / "a.txt", "text")
    assert {tmp_path, tmp_path / "new", tmp_path / "new" / "inner"} <= set(synced)


def test_a_disk_fault_has_its_own_exit_code(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with locked(tmp_path / "runs" / "bench" / "paper", "running an experiment"):
        assert main(["bench", "paper"]) == 2
    assert "another process is running an experiment there" in capsys.readouterr().err
    monkeypatch.setattr(os, "fsync", full)
    assert main(["bench", "paper", "--out", "other"]) == 4
    told = capsys.readouterr().err
    assert "experiment.json: cannot be written (No space left on device)" in told
    assert "Traceback" not in told


def test_a_picture_that_cannot_be_written_does_not_cost_the_training(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("holdfast.environments.point_gather_episode.Episode.of", lambda agent: None)
    monkeypatch.setattr("holdfast.environments.point_gather_episode.draw_episode", full)
    assert not TrainCommand("point-gather")._draw(tmp_path, None, ())
    assert "no picture" in capsys.readouterr().err


def test_a_read_only_file_system_is_named_before_any_work(tmp_path, monkeypatch, capsys):
    real = os.statvfs(tmp_path)

    class ReadOnly:
        f_flag = real.f_flag | os.ST_RDONLY

    monkeypatch.setattr(os, "statvfs", lambda _: ReadOnly)
    assert main(["train", "point-gather", "--out", str(tmp_path / "run")]) == 4
    assert "the file system is read-only" in capsys.readouterr().err
