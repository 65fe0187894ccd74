"""Downloads one large file over HTTP: resumed where it was cut, tried again when the network fails, checked at the end.

What has arrived is kept in a `.part` file named by the server's word for this version of the file (its checksum, `ETag`
or date), so that two versions are never glued together. The checksum comes from the server where it gives one. Where it
does not, the first download is trusted and written down, and every later one must be the same.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from email.message import Message
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, OpenerDirector, Request, build_opener

from traces.errors import CorpusError, MachineError

_BLOCK = 1 << 20
_LONGEST_PAUSE = 60.0


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file that has been downloaded.

    Attributes:
        name: of the file.
        size: in bytes.
        sha256: of its content.
        checked: against what: the `server`'s checksum, or nothing yet, this being the `first download`.
    """

    name: str
    size: int
    sha256: str
    checked: str


def fetch(
    url: str,
    target: Path,
    report: Callable[[str], None],
    attempts: int = 6,
    pause: float = 1.0,
    timeout: float = 30.0,
) -> Fetched:
    """Downloads `url` to `target` unless it is there and whole.

    Args:
        url: what to get. Redirections are followed.
        target: appears only when it is complete and its checksum holds; `target` + `.json` keeps its record.
        report: is told what happens, a line at a time.
        attempts: how often to try before giving up. What has come so far is kept for the next call.
        pause: seconds before the second attempt; doubled before each further one, up to a minute.
        timeout: seconds without a single byte after which an attempt is given up.

    Raises:
        MachineError: the server could not be reached, or broke off every time.
        CorpusError: the server refuses, or what it sends is not what its checksum, or the first download, says.
        OSError: `target` cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    record = target.with_name(target.name + ".json")
    known = _recall(record)
    if known is not None and target.is_file() and _is(target, known):
        return known
    failure = _Retry("not tried")
    for attempt in range(attempts):
        if attempt:
            wait = min(pause * 2 ** (attempt - 1), _LONGEST_PAUSE)
            report(f"{target.name}: {failure}; trying again in {wait:.0f} s")
            time.sleep(wait)
        started = time.monotonic()
        try:
            part, claimed = _transfer(url, target, timeout)
            fetched = _check(part, target.name, claimed, known)
        except _Retry as error:
            failure = error
            continue
        # The record first: a file without one would not be believed, a record without its file does no harm.
        record.write_text(json.dumps(asdict(fetched)), encoding="utf-8")
        part.replace(target)
        report(f"{target.name}: {fetched.size / 1e6:.1f} MB in {time.monotonic() - started:.1f} s")
        return fetched
    if isinstance(failure, _Damaged):
        raise CorpusError(f"{url} is damaged on its way or at its source: {failure}")
    raise MachineError(
        f"{url} cannot be downloaded: {failure} ({attempts} attempts); check the network and run this again: it goes on"
    )


class _Retry(Exception):
    """This attempt failed and the next one may not."""


class _Damaged(_Retry):
    """All bytes came, and they are the wrong ones."""


class _Redirects(HTTPRedirectHandler):
    """Follows redirections and keeps the checksum that one of them carries.

    A hub sends its files from elsewhere; the SHA-256 of a file (`X-Linked-Etag`) is on the redirection only.
    """

    def __init__(self) -> None:
        self.etag: str | None = None

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> Request | None:
        self.etag = self.etag or headers.get("X-Linked-Etag")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@dataclass(frozen=True, slots=True)
class _Claim:
    """What the server says of the whole file, as far as it says anything."""

    version: str | None
    size: int | None
    sha256: str | None


def _transfer(url: str, target: Path, timeout: float) -> tuple[Path, _Claim]:
    """One attempt: a `.part` file that has all its bytes, and what the server claims of it."""
    old = next(iter(sorted(target.parent.glob(target.name + ".?*.part"))), None)
    offset = old.stat().st_size if old else 0
    redirects = _Redirects()
    request = Request(url, headers={"Range": f"bytes={offset}-"} if offset else {})  # noqa: S310 the caller's own address
    with _open(build_opener(redirects), request, timeout, old) as response:
        claim = _claim(response.headers, redirects.etag)
        version = hashlib.sha256(claim.version.encode()).hexdigest()[:16] if claim.version else ""
        part = target.with_name(f"{target.name}.{version}.part")
        resumed = response.status == 206
        if resumed and (part != old or _first_byte(response.headers) != offset):
            if old:
                old.unlink()
            raise _Retry("the file has changed on the server since it was begun")
        if old and not resumed:
            old.unlink()
        with part.open("ab" if resumed else "wb") as out:
            for block in _blocks(response):
                out.write(block)
    size = part.stat().st_size
    if claim.size is not None and size != claim.size:
        raise _Retry(f"broken off after {size:,} of {claim.size:,} bytes")
    return part, claim


def _open(opener: OpenerDirector, request: Request, timeout: float, old: Path | None) -> Any:
    try:
        return opener.open(request, timeout=timeout)
    except HTTPError as error:
        error.close()
        if error.code == 416 and old:  # nothing comes after what we hold, yet it was not found whole: begin again
            old.unlink()
        elif error.code < 500 and error.code not in (408, 429):
            raise CorpusError(f"{request.full_url}: the server answers {error.code} {error.reason}") from None
        raise _Retry(f"the server answers {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise _Retry(f"no answer ({getattr(error, 'reason', None) or error})") from None


def _blocks(response: Any) -> Iterator[bytes]:
    while True:
        try:
            block = response.read(_BLOCK)
        except (OSError, http.client.HTTPException) as error:
            raise _Retry(f"broken off ({error})") from None
        if not block:
            return
        yield block


def _claim(headers: Message, etag: str | None) -> _Claim:
    etag = etag or headers.get("X-Linked-Etag")
    linked = (etag or "").strip('"').lower()
    sha256 = linked if re.fullmatch(r"[0-9a-f]{64}", linked) else None
    total = headers.get("Content-Range", "").rpartition("/")[2] or headers.get("Content-Length", "")
    version = etag or headers.get("ETag") or headers.get("Last-Modified")
    return _Claim(version, int(total) if total.isdigit() else None, sha256)


def _first_byte(headers: Message) -> int | None:
    match = re.match(r"bytes (\d+)-", headers.get("Content-Range", ""))
    return int(match[1]) if match else None


def _check(part: Path, name: str, claim: _Claim, known: Fetched | None) -> Fetched:
    """The record of a complete `.part` file, which is deleted if it is not what it should be."""
    sha256 = _sha256(part)
    for wanted, says in ((claim.sha256, "the server says"), (known and known.sha256, "the first download had")):
        if wanted and sha256 != wanted:
            part.unlink()
            raise _Damaged(f"its SHA-256 is {sha256[:12]}…, {says} {wanted[:12]}…")
    return Fetched(name, part.stat().st_size, sha256, "server" if claim.sha256 else "first download")


def _recall(record: Path) -> Fetched | None:
    try:
        return Fetched(**json.loads(record.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def _is(path: Path, known: Fetched) -> bool:
    return path.stat().st_size == known.size and _sha256(path) == known.sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
