"""A web site for the crawler: a real HTTP server on loopback whose pages a test lays out."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Route:
    """What an address answers with, after `delay` seconds."""

    body: str = ""
    status: int = 200
    content_type: str = "text/html; charset=utf-8"
    location: str | None = None
    delay: float = 0.0


@dataclass
class Site:
    """The pages by path, and what was asked for: (seconds on a monotonic clock, path)."""

    url: str
    routes: dict[str, Route] = field(default_factory=dict)
    requests: list[tuple[float, str]] = field(default_factory=list)

    def page(self, path: str, text: str, *links: str, delay: float = 0.0) -> None:
        """Lay out a page with a paragraph of its own and links to other paths."""
        anchors = "".join(f'<li><a href="{link}">{link}</a></li>' for link in links)
        body = f"<body><article><p>{text}</p></article><ul>{anchors}</ul></body>"
        self.routes[path] = Route(f"<html><head><title>{path}</title></head>{body}</html>", delay=delay)

    def redirect(self, path: str, location: str) -> None:
        self.routes[path] = Route(status=302, location=location)

    def paths(self) -> list[str]:
        return [path for _, path in self.requests]


@contextmanager
def serving_site() -> Iterator[Site]:
    """A site without pages, for as long as the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.requests.append((time.monotonic(), self.path))
            route = site.routes.get(self.path, Route("<p>not found</p>", status=404))
            time.sleep(route.delay)
            body = route.body.encode()
            self.send_response(route.status)
            if route.location:
                self.send_header("Location", route.location)
            self.send_header("Content-Type", route.content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(BrokenPipeError):  # a client that gave up
                self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        site = Site(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield site
        server.shutdown()
        thread.join()
