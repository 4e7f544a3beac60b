"""A history in a bucket: moto's server on loopback, behind a proxy that does what networks do."""

import http.client
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from perfci.history.cache import open_cache
from perfci.history.store import open_store
from perfci.history.stores import bucket as module
from perfci.history.stores.base import LARGEST, Store, content_of, name_of
from perfci.model.base import MachineError, UsageError
from tests.history.nights import night, point

URL = "s3://nights-of-main/team/perf"


class Proxy(ThreadingHTTPServer):
    """Hands requests on to moto; `fault` may break one: it is given the handler, and says whether it has answered."""

    daemon_threads = True

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.target = target
        self.fault: Callable[[Handler], bool] = lambda handler: False
        self.requests: list[str] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def asked(self) -> tuple[int, list[tuple[str, str]], bytes]:
        """What moto answers."""
        connection = http.client.HTTPConnection(self.server.target, timeout=20)
        connection.request(self.command, self.path, self.body, dict(self.headers.items()))
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        kept = [
            (name, value)
            for name, value in answer.getheaders()
            if name.lower() not in ("transfer-encoding", "connection", "content-length")
        ]
        return (
            answer.status,
            [*kept, ("Content-Length", answer.getheader("Content-Length") or str(len(content)))],
            content,
        )

    def reply(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def refuse(self, status: int, code: str) -> bool:
        content = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
        self.reply(status, [("Content-Length", str(len(content))), ("Content-Type", "application/xml")], content)
        return True

    def handle_one(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append(f"{self.command} {self.path}")
        if not self.server.fault(self):
            self.reply(*self.asked())

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = handle_one

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    from moto.server import ThreadedMotoServer  # which takes a second to import

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield "{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def proxy(moto: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Proxy]:
    for method, path in [("POST", "/moto-api/reset"), ("PUT", f"/{urlsplit(URL).netloc}")]:
        connection = http.client.HTTPConnection(moto)
        connection.request(method, path, headers={"Authorization": "AWS4-HMAC-SHA256 Credential=x/x/us-east-1/s3/x"})
        assert connection.getresponse().status == 200
        connection.close()
    server = Proxy(moto)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_address[1]}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setattr(module, "_READ", 1)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def store(proxy: Proxy) -> Store:
    return open_store(URL)


def put(store: Store, name: str, content: bytes) -> None:
    store._system.pipe_file(store._path(name), content)  # type: ignore[attr-defined]


def once(fault: Callable[[Handler], bool]) -> Callable[[Handler], bool]:
    """The fault, for the first request that it is one for."""
    done: list[bool] = []

    def broken(handler: Handler) -> bool:
        if done or not fault(handler):
            return False
        done.append(True)
        return True

    return broken


def test_nights_are_created_once_and_read_in_order(store: Store) -> None:
    assert list(store.nights()) == []
    assert all(store.add(night(day)) for day in (40, 3, 0))
    assert not store.add(night(3))
    assert [one.run for one in store.nights()] == ["run0", "run3", "run40"]
    assert next(store.nights()) == night(0)
    with pytest.raises(UsageError, match="is there with other content"):
        store.add(night(3, points=[]))
    with pytest.raises(UsageError, match="run run3, attempt 1, is there as"):
        store.add(night(4, run="run3"))


@pytest.mark.slow
def test_a_write_asks_that_there_is_none(store: Store, proxy: Proxy) -> None:
    """Two that write at once: the second is refused by the bucket, whatever it saw before."""
    seen: list[str | None] = []

    def between(handler: Handler) -> bool:
        if handler.command == "PUT":
            seen.append(handler.headers.get("If-None-Match"))
            if len(seen) == 1:
                open_store(URL).add(night(0, points=[]))
        return False

    proxy.fault = between
    with pytest.raises(UsageError, match="is there with other content"):
        store.add(night(0))
    assert seen == ["*", "*"]
    assert [one.points for one in store.nights()] == [[]]


@pytest.mark.slow
def test_a_time_out_after_the_write_is_no_failure(store: Store, proxy: Proxy) -> None:
    def late(handler: Handler) -> bool:
        if handler.command != "PUT":
            return False
        handler.asked()
        time.sleep(2)
        handler.close_connection = True
        return True

    proxy.fault = once(late)
    assert store.add(night(0))
    assert list(store.nights()) == [night(0)]


@pytest.mark.slow
def test_a_time_out_after_another_s_write_is_found_out(store: Store, proxy: Proxy) -> None:
    def late(handler: Handler) -> bool:
        if handler.command != "PUT":
            return False
        handler.body = content_of(night(0, points=[]))  # as somebody else would have
        handler.headers.replace_header("Content-Length", str(len(handler.body)))
        for name in [name for name in handler.headers if name.lower().startswith(("x-amz-", "content-md5"))]:
            del handler.headers[name]
        assert handler.asked()[0] == 200
        time.sleep(2)
        handler.close_connection = True
        return True

    proxy.fault = once(late)
    with pytest.raises(UsageError, match="is there with other content"):
        store.add(night(0))


@pytest.mark.parametrize("method", ["PUT", pytest.param("GET", marks=pytest.mark.slow)])
def test_a_503_is_tried_again(store: Store, proxy: Proxy, method: str) -> None:
    store.add(night(0))
    proxy.fault = once(lambda handler: handler.command == method and handler.refuse(503, "SlowDown"))
    assert store.add(night(1))
    assert len(list(store.nights())) == 2


@pytest.mark.slow
def test_a_bucket_that_stays_away_is_an_error_and_no_empty_history(store: Store, proxy: Proxy) -> None:
    store.add(night(0))
    proxy.fault = lambda handler: handler.refuse(503, "ServiceUnavailable")
    with pytest.raises(MachineError, match=r"cannot be listed: .*ServiceUnavailable"):
        list(store.nights())
    proxy.fault = lambda handler: "list-type" not in handler.path and handler.refuse(503, "ServiceUnavailable")
    with pytest.raises(MachineError, match="cannot be read"):
        list(store.nights())
    with pytest.raises(MachineError, match="cannot be"):
        store.add(night(1))


def _broken_off(handler: Handler) -> bool:
    if handler.command != "GET" or "list-type" in handler.path:
        return False
    status, headers, content = handler.asked()
    handler.reply(status, headers, content[: len(content) // 2])
    handler.close_connection = True
    return True


def test_an_answer_that_breaks_off_is_asked_for_again(store: Store, proxy: Proxy) -> None:
    store.add(night(0))
    proxy.fault = once(_broken_off)
    assert list(store.nights()) == [night(0)]


@pytest.mark.slow
def test_answers_that_always_break_off_are_an_error(store: Store, proxy: Proxy) -> None:
    store.add(night(0))
    proxy.fault = _broken_off
    with pytest.raises(MachineError, match="cannot be read"):
        list(store.nights())


def test_a_truncated_object_and_a_foreign_one_are_named(store: Store) -> None:
    store.add(night(0))
    put(store, name_of(night(1)), content_of(night(1))[:500])
    put(store, name_of(night(2)), b"x" * (LARGEST + 1))
    put(store, "nights/2026/11/../../x.json", b"{}")
    put(store, "nights//<b>", b"{}")
    put(store, "elsewhere/x.json", b"{}")
    put(store, "nights/2026/", b"")
    assert [one.run for one in store.nights()] == ["run0"]
    reasons = {fault.name: fault.reason for fault in store.faults}
    assert "is damaged (EOF" in reasons[name_of(night(1))]
    assert reasons[name_of(night(2))] == "has 8 MiB, more than the 8 that are read"
    assert reasons["nights/2026/11/../../x.json"] == reasons["nights//<b>"] == "is no document of a history"
    assert len(reasons) == 4


def test_a_stale_listing_loses_nothing(store: Store, proxy: Proxy) -> None:
    """A listing of before: what it lacks is created only if it is not there; what it has too much is named."""
    store.add(night(0))
    listings: list[tuple[int, list[tuple[str, str]], bytes]] = []

    def stale(handler: Handler) -> bool:
        if "list-type" not in handler.path:
            return False
        listings.append(listings[0] if listings else handler.asked())
        handler.reply(*listings[-1])
        return True

    proxy.fault = stale
    assert store.add(night(1))
    assert [one.run for one in store.nights()] == ["run0"]
    assert not store.add(night(1))
    with pytest.raises(UsageError, match="is there with other content"):
        store.add(night(1, points=[point("other")]))
    store._system.rm_file(store._path(name_of(night(0))))  # type: ignore[attr-defined]
    assert list(store.nights()) == []
    assert [fault.reason for fault in store.faults] == ["is listed, and not there"]
    proxy.fault = lambda handler: False
    assert [one.run for one in store.nights()] == ["run1"]


@pytest.mark.slow
def test_listings_of_many_pages_are_read_whole(store: Store, proxy: Proxy) -> None:
    for day in range(5):
        store.add(night(day))

    def short(handler: Handler) -> bool:
        if "list-type" in handler.path:
            handler.path += "&max-keys=2"
        return False

    proxy.fault = short
    assert len(list(store.nights())) == 5
    assert len([one for one in proxy.requests if "continuation-token" in one]) == 2


@pytest.mark.slow
def test_series_come_from_a_bucket_too(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for day in range(3):
        store.add(night(day))
    for _ in range(2):
        with open_cache(store) as cache:
            assert [entry.run for entry in cache.series()[0].entries] == ["run0", "run1", "run2"]


@pytest.mark.parametrize(
    "text",
    ["s3:", "s3://", "s3://x", "s3:///x", "s3://bucket/../x", "s3://bucket/a//b", "s3://bucket/a?b", "s3://Bucket/x"],
)
def test_what_names_no_bucket_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write s3://BUCKET/PREFIX"):
        open_store(text)


@pytest.mark.slow
def test_without_credentials_there_is_a_sentence(store: Store, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy.fault = lambda handler: handler.refuse(403, "AccessDenied")
    with pytest.raises(
        MachineError, match=r"^s3://nights-of-main/team/perf: cannot be listed: .*: see that its credentials"
    ):
        list(store.nights())
