"""Downloads, against a server on this machine that can be made to misbehave."""

import hashlib
import io
import tarfile
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from squareloss.lab.data import cifar, download, load
from squareloss.lab.data.cifar import File, Layout
from squareloss.lab.data.download import Archive

FOLDER = "cifar-10-batches-bin"


class Server(ThreadingHTTPServer):
    """Serves `content` at any path; `ranges` off sends everything again, `drop` closes after so many bytes of an answer.

    `sized` off does not say how many bytes will come, `stalls` keeps the connection open, silent, where it would be closed.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content, self.ranges, self.drop, self.status, self.asked = b"", True, None, 200, []
        self.sized, self.stalls, self.over = True, False, threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/data/archive.tar.gz"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server, wanted = self.server, self.headers.get("Range")
        server.asked.append(wanted)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and server.ranges else 0
        body, total = server.content[start:], len(server.content)
        if server.status != 200:
            self.send_error(server.status)
            return
        if wanted and server.ranges and start >= total:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{total}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if wanted and server.ranges else 200)
        if wanted and server.ranges:
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        if server.sized:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: server.drop])
        if server.stalls:
            server.over.wait(10)

    def log_message(self, *args):
        pass


def _tar(members):
    """A .tar.gz of (name, bytes) and of ready-made TarInfo."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))
    return buffer.getvalue()


def _files():
    rng = np.random.default_rng(0)
    records = np.concatenate([np.arange(30)[:, None] % 10, rng.integers(0, 256, (30, 3072))], 1).astype(np.uint8)
    return {"data_batch_1.bin": records[:20].tobytes(), "test_batch.bin": records[20:].tobytes()}


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.over.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def offer(server, monkeypatch):
    """Serve an archive under the name cifar10; its MD5 is that of `true`, if what is served is not the true one."""

    def offer(content=None, true=None):
        whole = _tar([(f"{FOLDER}/{name}", data) for name, data in _files().items()])
        server.content = whole if content is None else content
        sums = [File(name, len(data) // 3073, f"sha1:{hashlib.sha1(data).hexdigest()}") for name, data in _files().items()]
        layout = Layout(FOLDER, (sums[0],), (sums[1],), 1)
        archive = Archive(server.url, hashlib.md5(server.content if true is None else true).hexdigest(), layout)
        monkeypatch.setitem(download.ARCHIVES, "cifar10", archive)
        monkeypatch.setitem(cifar.LAYOUTS, "cifar10", (layout,))
        return server.content

    return offer


def _installed(root):
    folder = root / FOLDER
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == _files()
    assert [path.name for path in root.iterdir()] == [FOLDER]  # neither archive nor scratch folder is left
    return True


def test_get_then_load(offer, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))  # often another disk, from which nothing can be moved
    offer()
    root = tmp_path / "new" / "folder"
    assert download.get("cifar10", root) == root / FOLDER
    assert _installed(root)
    data = load("cifar10", root=root)
    assert (data.train.n, data.test.n) == (20, 10)


def test_what_is_there_is_left_alone_and_what_is_damaged_replaced(offer, server, tmp_path):
    offer()
    download.get("cifar10", tmp_path)
    download.get("cifar10", tmp_path)
    assert len(server.asked) == 1
    batch = tmp_path / FOLDER / "test_batch.bin"
    for damage in (lambda: batch.write_bytes(b"damaged"), batch.unlink):
        damage()
        server.asked.clear()
        download.get("cifar10", tmp_path)
        assert len(server.asked) == 1
        assert _installed(tmp_path)


def test_a_partial_file_is_resumed(offer, server, tmp_path):
    content = offer()
    (tmp_path / "archive.tar.gz.part").write_bytes(content[:1000])
    download.get("cifar10", tmp_path)
    assert server.asked == ["bytes=1000-"]
    assert _installed(tmp_path)


def test_a_dropped_connection_goes_on_by_itself(offer, server, tmp_path):
    content = offer()
    server.drop = len(content) // 3 + 1
    download.get("cifar10", tmp_path)
    assert server.asked == [None, f"bytes={server.drop}-", f"bytes={2 * server.drop}-"]
    assert _installed(tmp_path)


def test_a_connection_that_falls_silent_is_made_anew(offer, server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "_TIMEOUT", 1.0)
    server.drop, server.stalls, begun = len(offer()) // 2 + 1, True, time.monotonic()
    download.get("cifar10", tmp_path)
    assert server.asked == [None, f"bytes={server.drop}-"]
    assert time.monotonic() - begun < 9
    assert _installed(tmp_path)


def test_a_connection_that_brings_nothing_stops_and_can_be_resumed(offer, server, tmp_path):
    content = offer()
    (tmp_path / "archive.tar.gz.part").write_bytes(content[:1000])
    server.drop = 0
    with pytest.raises(OSError, match="1000 bytes so far; run it again to resume"):
        download.get("cifar10", tmp_path)
    server.drop = None
    download.get("cifar10", tmp_path)
    assert server.asked[-1] == "bytes=1000-"
    assert _installed(tmp_path)


def test_a_server_without_ranges_starts_over(offer, server, tmp_path):
    content = offer()
    server.ranges = False
    (tmp_path / "archive.tar.gz.part").write_bytes(content[:1000])
    download.get("cifar10", tmp_path)
    assert server.asked == ["bytes=1000-"]
    assert _installed(tmp_path)


def test_a_server_that_does_not_say_how_much_there_is(offer, server, tmp_path):
    offer()
    server.sized = False
    download.get("cifar10", tmp_path)
    assert server.asked == [None]
    assert _installed(tmp_path)


@pytest.mark.parametrize("extra", [b"", b"and more than the server has"])
def test_a_partial_file_that_is_complete_or_too_long(offer, server, tmp_path, extra):
    content = offer()
    (tmp_path / "archive.tar.gz.part").write_bytes(content + extra)
    download.get("cifar10", tmp_path)
    assert server.asked == [f"bytes={len(content + extra)}-", *([None] if extra else [])]
    assert _installed(tmp_path)


def test_truncated_and_tampered_archives(offer, server, tmp_path):
    whole = offer()
    middle = len(whole) // 2
    tampered = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    for content in (whole[:-100], tampered, b""):
        offer(content, true=whole)
        with pytest.raises(ValueError, match="expected MD5 .* truncated or"):
            download.get("cifar10", tmp_path)
        assert list(tmp_path.iterdir()) == []
    offer()
    download.get("cifar10", tmp_path)
    assert _installed(tmp_path)


def test_a_partial_file_with_wrong_bytes_is_thrown_away(offer, tmp_path):
    offer()
    (tmp_path / "archive.tar.gz.part").write_bytes(bytes(1000))
    with pytest.raises(ValueError, match="expected MD5"):
        download.get("cifar10", tmp_path)
    download.get("cifar10", tmp_path)
    assert _installed(tmp_path)


def _link(name, target, kind):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    "member",
    [
        ("../outside", b"x"),
        (f"{FOLDER}/../../outside", b"x"),
        _link(f"{FOLDER}/link", "../../outside", tarfile.SYMTYPE),
        _link(f"{FOLDER}/link", "/etc/passwd", tarfile.LNKTYPE),
        _link(f"{FOLDER}/pipe", "", tarfile.FIFOTYPE),
    ],
    ids=lambda m: m.name if isinstance(m, tarfile.TarInfo) else m[0],
)
def test_members_that_would_leave_the_folder(offer, tmp_path, member):
    root = tmp_path / "a" / "b"
    offer(_tar([*((f"{FOLDER}/{name}", data) for name, data in _files().items()), member]))
    with pytest.raises(ValueError, match="could not unpack it"):
        download.get("cifar10", root)
    assert [p.name for p in root.iterdir()] == ["archive.tar.gz.part"]
    assert list((tmp_path / "a").iterdir()) == [root]


def test_archives_that_hold_something_else(offer, tmp_path):
    files = [(f"{FOLDER}/{name}", data) for name, data in _files().items()]
    name, data = files[0]
    for content, error in [
        (_tar(files[:1]), FileNotFoundError),
        (_tar([(name, data[:-1] + b"x"), files[1]]), ValueError),
        (_tar([("other/file", b"x")]), FileNotFoundError),
        (b"no archive", ValueError),
        (_tar(files)[:2000], ValueError),
    ]:
        offer(content)
        with pytest.raises(error):
            download.get("cifar10", tmp_path)
        assert not (tmp_path / FOLDER).exists()
        (tmp_path / "archive.tar.gz.part").unlink()


def test_servers_that_refuse_or_are_not_there(offer, server, tmp_path):
    offer()
    server.status = 404
    with pytest.raises(OSError, match=r"archive\.tar\.gz: the server answered 404"):
        download.get("cifar10", tmp_path)
    with pytest.raises(OSError, match="could not download it"):
        download.fetch("http://127.0.0.1:1/nothing", tmp_path / "part")
    with pytest.raises(ValueError, match=r"Unknown data 'mnist'. Available: cifar10, cifar100"):
        download.get("mnist", tmp_path)


def test_progress_is_reported(offer, server, tmp_path):
    content = offer()
    seen = []
    (tmp_path / "part").write_bytes(content[:1000])
    download.fetch(server.url, tmp_path / "part", lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(content), len(content))
    assert all(done > 1000 for done, _ in seen)


def test_progress_is_shown(offer, tmp_path, capsys):
    offer()
    download.get("cifar10", tmp_path, progress=True)
    shown = capsys.readouterr().out
    assert "cifar10" in shown
    assert "kB" in shown
