from __future__ import annotations

import fsspec
import pytest

from holdfast.experiments.mirror import working_folder


@pytest.fixture
def remote(request):
    files = fsspec.filesystem("memory")
    root = f"/{request.node.name}"
    yield files, root, f"memory:/{root}"
    files.rm(root, recursive=True)


def test_a_folder_here_is_worked_in_as_it_is(tmp_path):
    with working_folder(str(tmp_path / "a")) as (folder, send):
        send()
        assert folder == tmp_path / "a"


def test_what_is_there_comes_and_what_is_new_goes(remote):
    files, root, url = remote
    files.pipe_file(f"{root}/jobs/old.npz", b"old")
    files.pipe_file(f"{root}/table.md", b"older")
    with working_folder(url) as (folder, send):
        assert (folder / "jobs" / "old.npz").read_bytes() == b"old"
        (folder / "jobs" / "new.npz").write_bytes(b"new")
        (folder / "jobs" / ".half.npz.x").write_bytes(b"ha")
        send()
        assert files.cat_file(f"{root}/jobs/new.npz") == b"new"
        (folder / "table.md").write_bytes(b"newer")
    assert files.cat_file(f"{root}/table.md") == b"newer"
    names = sorted(str(path)[len(root) + 1 :] for path in files.find(root))
    assert names == ["jobs/new.npz", "jobs/old.npz", "table.md"]


def test_what_was_done_before_a_failure_is_there(remote):
    files, root, url = remote

    def fail():
        with working_folder(url) as (folder, _):
            (folder / "a").write_bytes(b"a")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert files.cat_file(f"{root}/a") == b"a"


def test_only_what_changed_is_sent_again(remote, monkeypatch):
    files, _, url = remote
    sent = []
    put = type(files).pipe_file
    monkeypatch.setattr(
        type(files),
        "pipe_file",
        lambda self, path, *rest, **more: (sent.append(path), put(self, path, *rest, **more)),
    )
    with working_folder(url) as (folder, send):
        (folder / "a").write_bytes(b"a")
        send()
        send()
        (folder / "b").write_bytes(b"b")
    assert len(sent) == 2


def test_an_unknown_place_is_refused(tmp_path):
    with pytest.raises(ValueError, match="out: nowhere://x: "), working_folder("nowhere://x"):
        pass
