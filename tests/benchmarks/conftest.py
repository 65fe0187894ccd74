"""A file server that resumes, redirects and fails on demand: real sockets, real HTTP."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@dataclass
class FileServer:
    """Serves `files`. `faults` are consumed one a request: a status to answer, or ("cut", bytes) to break off after.

    Attributes:
        etag: what the `ETag` of a content is, `None` for no header.
        checksums: answer with a redirection that carries the SHA-256, as a hub does, and send the file from elsewhere.
        ranges: honour Range headers.
        asked: (path, Range header) of every request for a file.
        sent: bytes of content sent.
    """

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    faults: list[int | tuple[str, int]] = field(default_factory=list)
    etag: Callable[[bytes], str | None] = lambda content: hashlib.md5(content).hexdigest()
    checksums: bool = False
    ranges: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    sent: int = 0


@pytest.fixture
def server() -> Iterator[FileServer]:
    state = FileServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.removeprefix("/elsewhere").removeprefix("/")
            content = state.files.get(name)
            if state.checksums and not self.path.startswith("/elsewhere") and content is not None:
                self.send_response(302)
                self.send_header("Location", f"/elsewhere/{name}")
                self.send_header("X-Linked-Etag", f'"{hashlib.sha256(content).hexdigest()}"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            asked = self.headers.get("Range")
            state.asked.append((name, asked))
            fault = state.faults.pop(0) if state.faults else None
            if isinstance(fault, int) or content is None:
                self.send_error(fault if isinstance(fault, int) else 404)
                return
            start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and state.ranges else 0
            if start and start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            etag = state.etag(content)
            if etag is not None:
                self.send_header("ETag", f'"{etag}"')
            body = content[start:]
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if fault is not None:
                kind, count = fault
                body = body[:count] if kind == "cut" else bytes(len(body))  # "spoil": the right length, all zeros
                self.close_connection = True
            self.wfile.write(body)
            state.sent += len(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        state.url = f"http://127.0.0.1:{http.server_port}"
        yield state
        http.shutdown()
        thread.join()
