"""Tiny Shakespeare, fetched from a server of our own: no test needs a network."""

import contextlib
import hashlib
import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pooch
import pytest

from groundup.data.texts import TINY_SHAKESPEARE_SHA256, TINY_SHAKESPEARE_URL, tiny_shakespeare

TEXT = "First Citizen:\nSpeak, speak.\n" * 10
SHA256 = hashlib.sha256(TEXT.encode()).hexdigest()


class Server:
    """Answers every request with `status` and `content`, and counts them."""

    def __init__(self):
        self.status, self.content, self.num_requests = 200, TEXT.encode(), 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                server.num_requests += 1
                self.send_response(server.status)
                self.send_header("Content-Length", str(len(TEXT.encode())))
                self.end_headers()
                self.wfile.write(server.content)

            def log_message(self, *args):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}/input.txt"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self):
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()
            self._http.server_close()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    yield server
    server.stop()


def test_the_text_is_fetched_once_and_then_found_where_it_was_kept(server, tmp_path):
    parts = tiny_shakespeare(server.url, SHA256, tmp_path)
    assert parts.train + parts.validation == TEXT
    assert len(parts.validation) == len(TEXT) // 10
    assert parts.name == f"tiny-shakespeare of SHA256 {SHA256[:8]}"
    server.stop()
    assert tiny_shakespeare(server.url, SHA256, tmp_path) == parts
    assert server.num_requests == 1


@pytest.fixture
def heard():
    """What the downloader's log is told, at a level at which it hears everything."""
    logger, records = pooch.get_logger(), []
    handler, level = logging.Handler(), logger.level
    handler.emit = records.append
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield records
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.mark.parametrize("status", [200, 404])
def test_nothing_is_said_and_the_downloader_s_log_is_left_as_it_was(
    server, tmp_path, heard, status
):
    server.status = status
    with contextlib.suppress(ValueError):
        tiny_shakespeare(server.url, SHA256, tmp_path)
    assert heard == []
    assert server.num_requests == 1
    assert pooch.get_logger().level == logging.DEBUG


def test_a_copy_that_was_damaged_is_fetched_again(server, tmp_path):
    parts = tiny_shakespeare(server.url, SHA256, tmp_path)
    (kept,) = tmp_path.iterdir()
    kept.write_text("damaged")
    assert tiny_shakespeare(server.url, SHA256, tmp_path) == parts
    assert server.num_requests == 2


def test_it_is_what_is_published_and_kept_in_the_cache_folder(monkeypatch, tmp_path):
    seen = []

    def retrieve(*args):
        seen.extend(args)
        (tmp_path / "text").write_text(TEXT)
        return str(tmp_path / "text")

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert tiny_shakespeare().name == "tiny-shakespeare of SHA256 86c4e6aa"
    assert seen == [
        TINY_SHAKESPEARE_URL,
        f"sha256:{TINY_SHAKESPEARE_SHA256}",
        "tiny-shakespeare.txt",
        None,
    ]
    assert TINY_SHAKESPEARE_URL.startswith("https://raw.githubusercontent.com/karpathy/char-rnn/")
    assert len(TINY_SHAKESPEARE_SHA256) == 64


def test_another_text_is_refused_and_not_kept(server, tmp_path):
    server.content = TEXT.replace("speak", "shout").encode()
    message = f"file at {server.url} must have the SHA256 {SHA256}, got another file: not kept"
    with pytest.raises(ValueError, match=message):
        tiny_shakespeare(server.url, SHA256, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_text_that_breaks_off_is_refused_and_not_kept(server, tmp_path):
    server.content = TEXT.encode()[:100]
    with pytest.raises(ValueError, match="must be downloaded once, got .*Error from http"):
        tiny_shakespeare(server.url, SHA256, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_have_it_is_named_with_its_answer(server, tmp_path):
    server.status = 404
    with pytest.raises(ValueError, match=f"got status 404 from {server.url}; .* your own copy"):
        tiny_shakespeare(server.url, SHA256, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_a_server_the_way_out_is_said(server, tmp_path):
    server.stop()
    message = (
        rf"got ConnectionError from {server.url}; .* your own copy: `--data PATH`, .*text_file\("
    )
    with pytest.raises(ValueError, match=message) as caught:
        tiny_shakespeare(server.url, SHA256, tmp_path)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_an_address_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="must begin with http:// or https://, got 'ftp://x'"):
        tiny_shakespeare("ftp://x")
