"""Sends requests that obstore has none for, over connections that are kept for the next ones.

A collector removes thousands of chunks, each by a request of its own: to connect for each would
cost several times as much as the requests.
"""

from __future__ import annotations

import base64
import functools
import http.client
import re
import select
import ssl
import threading
import time
import urllib.request
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

CODE = re.compile(r"<Code>(\w{1,80})</Code>")
"""The service's own word for what is wrong, in an answer."""

KEPT_S = 10.0
"""A connection on which nothing happened for so long is not used again: what lies between may have
forgotten it without a word."""


class Answer(NamedTuple):
    """What a service answered to one request."""

    status: int
    code: str
    tried: int = 1


class Line:
    """A connection to one place, by way of the proxy that the environment names for it."""

    def __init__(
        self, place: SplitResult, timeout_s: float, context: ssl.SSLContext | None
    ) -> None:
        """Connect within `timeout_s` seconds. Raises OSError, HTTPException."""
        proxy = proxy_of(place)
        self._ahead = f"{place.scheme}://{place.netloc}" if proxy and place.scheme == "http" else ""
        self._login = proxy_login(proxy) if proxy else {}
        host = (proxy or place).hostname or ""
        port = (proxy.port or 80) if proxy else place.port
        self._http: http.client.HTTPConnection
        if place.scheme == "https":
            self._http = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
            if proxy:
                self._http.set_tunnel(place.hostname or "", place.port, self._login)
                self._login = {}
        else:
            self._http = http.client.HTTPConnection(host, port, timeout=timeout_s)
        try:
            self._http.connect()
        except BaseException:
            self.close()
            raise
        self._used = time.monotonic()

    def ask(self, method: str, target: str, headers: dict[str, str], timeout_s: float) -> Answer:
        """Send a request without a body and read its answer, each piece of which comes within
        `timeout_s` seconds. Raises OSError, HTTPException; the line is of no use then."""
        self._http.sock.settimeout(timeout_s)
        self._http.request(method, self._ahead + target, headers={**headers, **self._login})
        with self._http.getresponse() as answer:
            code = CODE.search(answer.read().decode(errors="replace"))
        self._used = time.monotonic()
        return Answer(answer.status, code[1] if code else "")

    def is_usable(self) -> bool:
        """Whether another request can be sent: neither side has closed it, nor is it too old."""
        if self._http.sock is None or time.monotonic() - self._used > KEPT_S:
            return False
        waiting = select.poll()
        waiting.register(self._http.sock, select.POLLIN)
        return not waiting.poll(0)  # nothing is to come but its end

    def close(self) -> None:
        self._http.close()


class Connections:
    """Lines that nobody uses just now, by place. Methods may be called from any thread."""

    def __init__(self, connect_timeout_s: float, read_timeout_s: float) -> None:
        self._connect_timeout_s, self._read_timeout_s = connect_timeout_s, read_timeout_s
        self._idle: dict[tuple[str, str], list[Line]] = {}
        self._lock = threading.Lock()

    def send(self, method: str, url: str, headers: dict[str, str]) -> Answer | str:
        """The answer to one request without a body, or what happened in place of one."""
        place = urlsplit(url)
        target = place._replace(scheme="", netloc="", path=place.path or "/").geturl()
        line: Line | None = None
        try:
            line = self._take(place) or self._open(place)
            answer = line.ask(method, target, headers, self._read_timeout_s)
        except (OSError, http.client.HTTPException) as error:
            # Not sent again here, also when a kept line broke: that is for who counts the tries.
            if line is not None:
                line.close()
            late = isinstance(error, TimeoutError)
            return "did not answer in time" if late else "cannot be reached"
        self._keep(place, line)
        return answer

    def close(self) -> None:
        """Close what is kept."""
        with self._lock:
            lines = [line for kept in self._idle.values() for line in kept]
            self._idle.clear()
        for line in lines:
            line.close()

    @functools.cached_property
    def _context(self) -> ssl.SSLContext:
        # Once: it reads the certificates of all authorities.
        return ssl.create_default_context()

    def _open(self, place: SplitResult) -> Line:
        context = self._context if place.scheme == "https" else None
        return Line(place, self._connect_timeout_s, context)

    def _take(self, place: SplitResult) -> Line | None:
        while True:
            with self._lock:
                kept = self._idle.get((place.scheme, place.netloc))
                if not kept:
                    return None
                line = kept.pop()
            if line.is_usable():
                return line
            line.close()

    def _keep(self, place: SplitResult, line: Line) -> None:
        with self._lock:
            kept = [*self._idle.get((place.scheme, place.netloc), []), line]
            usable = [each for each in kept if each.is_usable()]
            self._idle[place.scheme, place.netloc] = usable
        for each in kept:
            if each not in usable:
                each.close()


def proxy_of(place: SplitResult) -> SplitResult | None:
    """The proxy that the environment (HTTPS_PROXY, NO_PROXY, ...) names for a place."""
    named = urllib.request.getproxies().get(place.scheme)
    if not named or urllib.request.proxy_bypass(place.netloc):
        return None
    return urlsplit(named if "//" in named else f"//{named}")


def proxy_login(proxy: SplitResult) -> dict[str, str]:
    """The header with the name and password in a proxy's address; {}: it has none."""
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
