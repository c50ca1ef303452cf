"""From HTML to text and links."""

from __future__ import annotations

import pytest

from stream2llm.crawl.html import Link, normalized, read_document, site_of

PAGE = b"""<html><head><title> A  page </title></head><body>
<article><p>The main text of this page stands here.</p>
<table><tr><td>cell one</td><td>cell two</td></tr></table></article>
<a href="b.html#part">Beta <b>page</b></a> <a href="/c?utm_source=x&q=1">c</a> <a href="mailto:x@y.z">mail</a>
<a name="no-link">anchor</a> <a href="http://[bad">bad</a> <a href="https://other.example/">other</a>
</body></html>"""


def test_reads_title_text_and_links() -> None:
    document = read_document(PAGE, "http://site.example/dir/a.html")

    assert document.title == "A page"
    assert "The main text of this page stands here." in document.lines
    assert not any("|" in line for line in document.lines)
    urls = [link.url for link in document.links]
    assert document.links[0] == Link("http://site.example/dir/b.html", "Beta page")
    assert "http://site.example/c?q=1" in urls
    assert "https://other.example/" in urls
    assert not any("mailto" in url for url in urls)


@pytest.mark.parametrize("body", [b"", b"   ", b"\x00\x01\x02", b"\xff\xfe garbage"])
def test_bytes_that_are_no_page_make_a_document_without_links(body: bytes) -> None:
    assert read_document(body, "http://site.example/").links == ()


def test_decodes_the_page_as_it_says_itself() -> None:
    html = '<html><head><meta charset="iso-8859-1"></head><body><p>Das Gemüse für Ärzte.</p></body></html>'
    assert "Das Gemüse für Ärzte." in read_document(html.encode("iso-8859-1"), "http://x.example/").lines


def test_one_page_has_one_address_and_one_site_has_one_name() -> None:
    assert normalized("HTTP://Site.example:80/a#b") == normalized("http://site.example/a")
    assert site_of("https://www.site.example/a") == site_of("http://site.example/b")
    assert site_of("http://127.0.0.1:1/") != site_of("http://127.0.0.1:2/")
