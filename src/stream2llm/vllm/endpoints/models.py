"""Request and response bodies, as OpenAPI documents them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, TypeAdapter, WithJsonSchema, model_validator
from pydantic.functional_validators import PlainValidator
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionMessageParam
from vllm.renderers.chat_utils import has_non_text_content

from stream2llm import content
from stream2llm.content import Content

RESERVED_IDS = frozenset({"jsonl", "statistics", "ws"})
ID_PATTERN = r"^[A-Za-z0-9_-]{1,64}$"
MAX_TTL = 86400.0
DEFAULT_TTL = 600.0


def _is_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("Input should be a string")
    return value


# Pydantic refuses half a surrogate pair, which is what a chunk that ends inside an emoji may hold in JSON.
AnyText = Annotated[str, PlainValidator(_is_text), WithJsonSchema({"type": "string"})]
Message = dict[str, Any]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _HasContent(_Body):
    text: AnyText | None = Field(
        None,
        description="Text, tokenised as one text with all that came before.",
        examples=["Paris is the capital of France. "],
    )
    token_ids: list[StrictInt] | None = Field(None, description="Ready token ids.", examples=[[1, 2, 3]])
    messages: list[Message] | None = Field(
        None,
        description="Chat messages, rendered with the model's chat template.",
        examples=[[{"role": "user", "content": "Answer from these pages."}]],
    )

    @model_validator(mode="after")
    def _one_kind(self) -> _HasContent:
        given = [kind for kind in ("text", "token_ids", "messages") if getattr(self, kind) is not None]
        if len(given) > 1 or (not given and self._needs_content()):
            allowed = "exactly one" if self._needs_content() else "at most one"
            raise ValueError(f"give {allowed} of text, token_ids and messages, not {len(given)}")
        return self

    @classmethod
    def _needs_content(cls) -> bool:
        return True

    def to_content(self) -> Content | None:
        """The content given, None if none was. Raises `pydantic.ValidationError` for what is not a chat message."""
        if self.text is not None:
            return content.text(self.text)
        if self.token_ids is not None:
            if self.token_ids and min(self.token_ids) < 0:
                raise content.ContentError(f"token_ids: {min(self.token_ids)} is not a token id of this model.")
            return content.token_ids(self.token_ids)
        if self.messages is not None:
            return _checked(content.messages(self.messages))
        return None


class WriteRequest(_HasContent):
    """Content to append, or to put in place of what is there."""

    expected_version: int | None = Field(
        None,
        ge=0,
        description="The version that the writer believes to be current; any other is refused with 409.",
    )


class OpenRequest(_HasContent):
    """A new context stream, with or without first content."""

    id: str | None = Field(None, pattern=ID_PATTERN, description="A name of your own; made up when left out.")
    ttl: float = Field(DEFAULT_TTL, gt=0, le=MAX_TTL, description="Seconds without a write after which it expires.")
    model: str | None = Field(None, description="As in any OpenAI request; a LoRA adapter's name selects it.")
    cache_salt: str | None = Field(None, min_length=1, max_length=1024, description="As in any vLLM request.")
    priority: int = Field(0, ge=-(2**63), le=2**63 - 1, description="As in any vLLM request.")
    add_special_tokens: bool = Field(True, description="Text only: put BOS and the like in front.")
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Messages only: what the chat template will be given at the end."
    )
    tools: list[dict[str, Any]] | None = Field(
        None, description="Messages only: the tools that the final request will offer."
    )

    @model_validator(mode="after")
    def _free_id(self) -> OpenRequest:
        if self.id in RESERVED_IDS:
            raise ValueError(f"id: {self.id!r} is the name of a route; choose another")
        return self

    @classmethod
    def _needs_content(cls) -> bool:
        return False


class StreamStatus(BaseModel):
    """A stream's state, and what its last write did. Token counts are of the whole prompt so far."""

    id: str
    object: Literal["context_stream"] = "context_stream"
    state: str = Field(
        description="empty, waiting, prefilling, ready (all computed), evicted (computed again when needed) or finished"
    )
    version: int = Field(description="0 for a stream opened empty, one more with every write.")
    tokens: int = Field(description="Tokens of the whole prompt so far.")
    lcp: int = Field(description="Tokens in common with the version before, from the front.")
    invalidated_tokens: int = Field(description="Computed tokens that are not part of the new prompt.")
    computed_tokens: int = Field(description="Tokens of the prompt that are computed already.")
    created_at: float = Field(description="Unix seconds.")
    expires_at: float = Field(description="Unix seconds; every write puts it off.")

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "id": "cs_6f1d2c3b4a5968778695a4b3c2d1e0ff",
                "object": "context_stream",
                "state": "prefilling",
                "version": 3,
                "tokens": 812,
                "lcp": 512,
                "invalidated_tokens": 96,
                "computed_tokens": 512,
                "created_at": 1790000000.0,
                "expires_at": 1790000600.0,
            }
        }
    )


class StreamDetails(StreamStatus):
    """A stream with its content (one of the three), where that was asked for."""

    text: str | None = None
    token_ids: list[int] | None = None
    messages: list[Message] | None = None


class StreamList(BaseModel):
    object: Literal["list"] = "list"
    data: list[StreamStatus]


class SchedulerStatistics(BaseModel):
    """Counters of the scheduler since it started, of each data-parallel rank; docs/scheduling.md names them."""

    object: Literal["context_stream.statistics"] = "context_stream.statistics"
    data: list[dict[str, Any]]


class StreamClosed(BaseModel):
    id: str
    object: Literal["context_stream"] = "context_stream"
    deleted: Literal[True] = True


_CHAT_MESSAGES: TypeAdapter[Any] = TypeAdapter(list[ChatCompletionMessageParam])


def _checked(messages: content.Messages) -> content.Messages:
    """The messages, if the chat endpoint would take them and they are text."""
    if has_non_text_content(messages.closed):
        raise content.ContentError(
            "A context stream holds text only; give images, audio and video in the final request's messages."
        )
    _CHAT_MESSAGES.validate_python(messages.closed)
    return messages
