import pytest


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """MuJoCo writes its warnings into a file where it is."""
    monkeypatch.chdir(tmp_path)
