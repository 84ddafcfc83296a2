from __future__ import annotations

import http.client
import json
import threading

import pytest

from holdfast.report.page.serve import Server

from .conftest import train_folder


@pytest.fixture
def server(tmp_path):
    with Server([tmp_path]) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield serving
        serving.shutdown()


def ask(server, path, host=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    try:
        connection.request("GET", path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_it_serves_the_page_and_its_data_and_nothing_else(server, gather_run, tmp_path):
    assert ask(server, "/")[1].startswith(b"<!doctype html>")
    status, body = ask(server, "/data.json")
    assert (status, json.loads(body)["sections"]) == (200, [])
    train_folder(tmp_path / "run", gather_run, 2)
    data = json.loads(ask(server, "/data.json")[1])
    assert [section["title"] for section in data["sections"]] == ["point-gather"]
    assert data["follow_every"] == 2.0
    assert ask(server, "/../secret")[0] == 404
    assert ask(server, "/favicon.ico")[0] == 204


def test_it_answers_only_to_this_machines_own_name(server):
    assert ask(server, "/data.json", host="localhost:80")[0] == 200
    assert ask(server, "/data.json", host="elsewhere.example")[0] == 403


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not a folder"):
        Server([tmp_path / "nothing"])
