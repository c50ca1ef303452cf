"""Shared fixtures. Engines and servers take long to start, so there is one of each for the whole run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import serving
from tiny_model import tiny_model


@pytest.fixture(scope="session")
def model() -> str:
    return tiny_model()


@pytest.fixture(scope="session")
def server(model: str) -> Iterator[serving.Server]:
    """`stream2llm serve` on the tiny model: 4096 tokens at most, 8 sequences, 512 tokens per step."""
    with serving.running_server(serving.OURS, model, *serving.SMALL) as running:
        yield running


@pytest.fixture(scope="session")
def stock_server(model: str) -> Iterator[serving.Server]:
    """vLLM's own server without the plug-in, on the tiny model."""
    options = ("--dtype", "float32", "--block-size", "32", *serving.SMALL)
    with serving.running_server(serving.STOCK, model, *options) as running:
        yield running
