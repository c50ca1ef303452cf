"""Shared fixtures. Engines and servers take long to start, so there is one of each for the whole run."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import serving
from tiny_model import tiny_model

# One thread for each in-process engine: several that spin for the same cores slow each other down many times over, and
# the tiny model gains nothing from a second one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")


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
