"""From a page's HTML to its main text and its links; pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urldefrag, urljoin, urlsplit

_BLANKS = re.compile(r"[ \t\u00a0|]+")  # also the cell borders that text extraction draws in tables


@dataclass(frozen=True, slots=True)
class Link:
    """A link to another page: its normalised address and the words it is shown as."""

    url: str
    words: str


@dataclass(frozen=True, slots=True)
class Document:
    """What a crawler needs of a page: title, main text as non-blank lines, links in page order."""

    title: str
    lines: tuple[str, ...]
    links: tuple[Link, ...]


def normalized(url: str) -> str:
    """The address without fragment and tracking parameters, in one spelling."""
    from courlan import normalize_url

    return str(normalize_url(urldefrag(url).url))


def site_of(url: str) -> str:
    """What two addresses of the same site have in common: the host, with its port, without a leading www."""
    return urlsplit(url).netloc.lower().removeprefix("www.")


def read_document(html: bytes, url: str) -> Document:
    """The document in a page fetched from `url`; an empty one when the bytes are not HTML."""
    from trafilatura import extract, load_html

    tree = load_html(html)
    if tree is None:
        return Document("", (), ())
    links = tuple(_links(tree, url))
    title = _BLANKS.sub(" ", tree.findtext(".//title") or "").strip()
    text = extract(html, url=url, include_comments=False, favor_recall=True) or ""
    lines = (_BLANKS.sub(" ", line).strip() for line in text.splitlines())
    return Document(title or url, tuple(line for line in lines if line), links)


def _links(tree: object, url: str) -> Iterator[Link]:
    for anchor in tree.iter("a"):  # type: ignore[attr-defined]
        try:
            target = normalized(urljoin(url, anchor.get("href") or ""))
            scheme = urlsplit(target).scheme
        except ValueError:  # not an address at all
            continue
        if scheme in ("http", "https"):
            yield Link(target, " ".join("".join(anchor.itertext()).split()))
