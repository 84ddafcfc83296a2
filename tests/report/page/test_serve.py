from __future__ import annotations

import concurrent.futures
import http.client
import json
import socket
import struct
import threading
import time

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


def test_it_answers_five_hundred_requests_at_once(server):
    with concurrent.futures.ThreadPoolExecutor(500) as pool:
        found = list(pool.map(lambda _: ask(server, "/data.json")[0], range(500)))
    assert found == [200] * 500


def test_slow_clients_neither_block_it_nor_use_all_threads(server, monkeypatch):
    monkeypatch.setattr("holdfast.report.page.serve._Handler.timeout", 0.5)
    before = threading.active_count()
    slow = [socket.create_connection(server.server_address) for _ in range(60)]
    try:
        for each in slow:
            each.sendall(b"GET / HTTP/1.1\r\nHost: ")
        assert ask(server, "/data.json")[0] == 200
        assert threading.active_count() <= before + 32
    finally:
        for each in slow:
            each.close()


def test_a_client_that_goes_away_leaves_no_traceback(server, capsys):
    for _ in range(20):
        with socket.create_connection(server.server_address) as gone:
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert ask(server, "/data.json")[0] == 200
    time.sleep(0.2)
    assert capsys.readouterr().err == ""


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not a folder"):
        Server([tmp_path / "nothing"])
