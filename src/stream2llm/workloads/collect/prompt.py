"""How what a retriever finds becomes the content of a trace; pure."""

from __future__ import annotations

import hashlib
import re

from stream2llm.crawl.page import Latency
from stream2llm.workloads.trace import Piece

OPENING = Piece(text="Answer the question at the end from the context.\n\n")

_LONGEST_NAME = 500  # of a piece, in characters


def asked(question: str) -> Piece:
    """What follows the context."""
    return Piece(text=f"Question: {question}\nAnswer in one or two sentences.")


def titled(title: str, text: str) -> Piece:
    """A page or a passage under its title; it ends with an empty line, so that pieces may follow each other."""
    return Piece(text=f"# {title}\n{text}\n\n")


def cut(text: str, characters: int) -> str:
    """At most so many characters of the text, cut between two words; what is cut off leaves " ..." behind."""
    if len(text) <= characters:
        return text
    words = re.match(r"(?s).*\S(?=\s)", text[: characters - 3])
    return f"{words[0] if words else text[: characters - 4]} ..."


def added(what: str, latency: Latency) -> str:
    """What a trace's description says of latency that is not the retriever's own; empty where there is none."""
    if not latency.median:
        return ""
    return (
        f"to each {what} a latency was added: lognormal, median {latency.median:g} s, "
        f"sigma {latency.sigma:g}, seed {latency.seed}"
    )


def name_of(address: str) -> str:
    """A piece's name: the address, or as much of it as a trace's names may have and a hash of the whole."""
    if len(address) <= _LONGEST_NAME:
        return address
    digest = hashlib.sha256(address.encode()).hexdigest()[:16]
    return f"{address[: _LONGEST_NAME - len(digest) - 1]}~{digest}"
