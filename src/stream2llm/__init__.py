"""Stream retrieval context into vLLM while it is being retrieved."""

# ruff: noqa: F403, F405 - the names come from the client, for type checkers; at run time from __getattr__.
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stream2llm.client import *

__version__ = "0.1.0"

__all__ = [
    "Ack",
    "Answer",
    "AnswerInterrupted",
    "AnswerStream",
    "AsyncAnswerStream",
    "AsyncClient",
    "AsyncContextStream",
    "AuthenticationError",
    "Client",
    "ContextStream",
    "ContextTooLong",
    "InvalidRequest",
    "ModelNotFound",
    "Piece",
    "PrefixWarmingWarning",
    "RetryPolicy",
    "ServerUnavailable",
    "Stream2LLMError",
    "StreamConflict",
    "StreamFinished",
    "StreamNotFound",
    "__version__",
]


def __getattr__(name: str) -> Any:
    # Loaded at first use: the engine's processes and the command line import this package without the client.
    if name in __all__:
        return getattr(importlib.import_module("stream2llm.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
