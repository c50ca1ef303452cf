"""The client SDK: stream context to a server while it is being retrieved, then ask."""

from stream2llm.client.answers import Ack, Answer, Piece
from stream2llm.client.async_client import AsyncAnswerStream, AsyncClient, AsyncContextStream
from stream2llm.client.errors import (
    AnswerInterrupted,
    AuthenticationError,
    ContextTooLong,
    InvalidRequest,
    ModelNotFound,
    PrefixWarmingWarning,
    ServerUnavailable,
    Stream2LLMError,
    StreamConflict,
    StreamFinished,
    StreamNotFound,
)
from stream2llm.client.retry import RetryPolicy
from stream2llm.client.sync_client import AnswerStream, Client, ContextStream

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
]
