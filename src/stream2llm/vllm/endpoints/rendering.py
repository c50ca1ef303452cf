"""From a stream's content to its prompt's token ids, as the stock endpoints will make them of the final request."""

from __future__ import annotations

import asyncio
from array import array
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.exceptions import VLLMValidationError
from vllm.renderers.params import ChatParams, merge_kwargs
from vllm.utils.mistral import is_mistral_tokenizer

from stream2llm.content import Content, Messages, Text, TokenIds
from stream2llm.seam import Encoding, Seam, Splice, TokenisedText
from stream2llm.stream import longest_common_prefix
from stream2llm.vllm.endpoints.errors import ApiError

if TYPE_CHECKING:
    from vllm.renderers.online_renderer import OnlineRenderer

# Up to here tokenising takes less time than handing it to a thread and back.
_INLINE_CHARACTERS = 8192


@dataclass(frozen=True, slots=True)
class Settings:
    """What a stream was opened with and its final request will be given where its body says nothing."""

    model: str | None = None
    cache_salt: str | None = None
    priority: int = 0
    add_special_tokens: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class Prompt:
    """A prompt's token ids: special tokens in front, the body, special tokens behind."""

    head: tuple[int, ...] = ()
    body: TokenisedText = field(default_factory=TokenisedText)
    foot: tuple[int, ...] = ()

    @property
    def token_ids(self) -> list[int]:
        return [*self.head, *self.body.ids, *self.foot]

    def apply(self, change: Change) -> None:
        self.head, self.foot = change.head, change.foot
        self.body.apply(change.splice)


@dataclass(frozen=True, slots=True)
class Change:
    """The way from one prompt to the next: keep the first `keep` token ids, put `tail` behind them."""

    keep: int
    tail: list[int]
    head: tuple[int, ...]
    splice: Splice
    foot: tuple[int, ...]


class PromptRenderer:
    """Renders and tokenises the content of streams with vLLM's renderer, chat template and tokenizer."""

    def __init__(self, online_renderer: OnlineRenderer) -> None:
        self._online = online_renderer
        self._renderer: Any = online_renderer.renderer
        self._tokenizer = self._renderer.tokenizer
        self._max_prompt = online_renderer.model_config.max_model_len - 1
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="context-streams-tokenizer")
        self._specials: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        self._seam = Seam(self._encode, lookahead=2 * self._longest_special())

    async def change(self, old: Prompt, content: Content | None, settings: Settings) -> Change:
        """How `content`'s prompt differs from `old`, the one before.

        Raises `ApiError` (400) for token ids out of the vocabulary, a prompt too long for the model, and messages
        that the chat template refuses.
        """
        head: tuple[int, ...] = ()
        foot: tuple[int, ...] = ()
        match content:
            case None:
                splice = _exchange(old.body, array("I"))
            case TokenIds(ids):
                splice = _exchange(old.body, ids)
                self._check_vocabulary(splice.ids)
            case Text():
                if settings.add_special_tokens:
                    head, foot = self._special_tokens()
                splice = await self._tokenise(old.body, content.closed)
            case Messages():
                rendered = await self._render(content, settings)
                if isinstance(rendered, str):
                    splice = await self._tokenise(old.body, rendered)
                else:
                    splice = _exchange(old.body, array("I", rendered))
        same_head = head == old.head
        keep = len(head) + splice.keep if same_head else longest_common_prefix(array("I", head), array("I", old.head))
        tail = [*splice.ids, *foot] if same_head else [*head[keep:], *old.body.ids[: splice.keep], *splice.ids, *foot]
        self._check_length(keep + len(tail))
        return Change(keep, tail, head, splice, foot)

    def _check_vocabulary(self, ids: array[int]) -> None:
        try:
            self._renderer.validate_token_ids(ids, parameter="token_ids")
        except VLLMValidationError as error:
            raise ApiError(HTTPStatus.BAD_REQUEST, f"token_ids: {error.args[0]}.", "token_ids") from error

    def _check_length(self, tokens: int, qualifier: str = "") -> None:
        if tokens > self._max_prompt:
            raise ApiError(
                HTTPStatus.BAD_REQUEST,
                f"The prompt would have {qualifier}{tokens} tokens; the limit is {self._max_prompt} (this model's "
                f"maximum context length of {self._max_prompt + 1}, less one token of output). "
                "Shorten the context, or start the server with a larger --max-model-len.",
                "content",
            )

    async def _tokenise(self, old: TokenisedText, text: str) -> Splice:
        if self._tokenizer is None:
            raise ApiError(
                HTTPStatus.BAD_REQUEST, "This server has no tokenizer (--skip-tokenizer-init): give token_ids.", "text"
            )
        if len(text) > (self._max_prompt + 1) * self._tokenizer.max_chars_per_token:
            self._check_length(-(-len(text) // self._tokenizer.max_chars_per_token), "at least ")
        if abs(len(text) - len(old.text)) <= _INLINE_CHARACTERS:
            splice = self._seam.resume(old, text)
            if splice is None and len(text) <= _INLINE_CHARACTERS:
                splice = self._seam.in_full(old, text)
            if splice is not None:
                return splice
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._seam.retokenise, old, text)

    def _encode(self, text: str) -> Encoding:
        fast = self._tokenizer.is_fast
        encoding = self._tokenizer(
            text, add_special_tokens=False, **({"return_offsets_mapping": True, "verbose": False} if fast else {})
        )
        return Encoding(encoding["input_ids"], encoding["offset_mapping"] if fast else None)

    def _special_tokens(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The special tokens that the tokenizer puts in front of a text and behind it."""
        if self._specials is None:
            probe = "a"
            inner = list(self._tokenizer(probe, add_special_tokens=False)["input_ids"])
            whole = list(self._tokenizer(probe, add_special_tokens=True)["input_ids"])
            at = next(n for n in range(len(whole) + 1) if whole[n : n + len(inner)] == inner)
            self._specials = tuple(whole[:at]), tuple(whole[at + len(inner) :])
        return self._specials

    def _longest_special(self) -> int:
        added = getattr(self._tokenizer, "added_tokens_encoder", None) or {}
        return max(map(len, added), default=0)

    async def _render(self, content: Messages, settings: Settings) -> str | list[int]:
        """The open-ended prompt of `content`: its text, or token ids where the renderer makes those itself."""
        if not content.messages:
            return ""
        messages = content.closed
        request = self._chat_request(messages, settings)
        if self._online.use_harmony:
            return await self._render_harmony(request)
        refusal = self._online.validate_chat_template(
            request_chat_template=None,
            chat_template_kwargs=request.chat_template_kwargs,
            trust_request_chat_template=self._online.trust_request_chat_template,
        )
        if refusal is not None:
            raise ApiError(HTTPStatus.BAD_REQUEST, refusal.error.message, "chat_template_kwargs")
        params = self._chat_params(request)
        closed = merge_kwargs(params.chat_template_kwargs, {"continue_final_message": False})
        # Some templates cannot leave the last message open, some want a question of the user first. What the end
        # will be is not known yet: the longest prefix that can be had is good enough.
        attempts = (
            (messages, params),
            (messages, replace(params, chat_template_kwargs=closed)),
            ([*messages, {"role": "user", "content": ""}], params),
        )
        refused: list[VLLMValidationError] = []
        for attempt, attempt_params in attempts:
            try:
                _, prompt = await self._renderer.render_messages_async(list(attempt), attempt_params)
            except VLLMValidationError as error:
                refused.append(error)
            else:
                return prompt["prompt"] if isinstance(prompt.get("prompt"), str) else list(prompt["prompt_token_ids"])
        raise ApiError(HTTPStatus.BAD_REQUEST, f"messages: {refused[1].args[0]}", "messages")

    async def _render_harmony(self, request: ChatCompletionRequest) -> list[int]:
        """gpt-oss has a message format of its own; it cannot be left open, so its last tokens are computed again."""
        result = await self._online.render_chat(request)
        if not isinstance(result, tuple):
            raise ApiError(HTTPStatus.BAD_REQUEST, result.error.message, "messages")
        return list(result[1][0]["prompt_token_ids"])

    def _chat_request(self, messages: list[Any], settings: Settings) -> ChatCompletionRequest:
        return ChatCompletionRequest(
            messages=messages,
            add_generation_prompt=False,
            continue_final_message=True,
            chat_template_kwargs=settings.chat_template_kwargs,
            **({"tools": settings.tools} if settings.tools else {}),
        )

    def _chat_params(self, request: ChatCompletionRequest) -> ChatParams:
        """As `OnlineRenderer.preprocess_chat` makes them."""
        tools = [tool.model_dump() for tool in request.tools] if request.tools else None
        tokenize = is_mistral_tokenizer(self._tokenizer) or self._online.model_config.enable_prompt_embeds
        return request.build_chat_params(
            self._online.chat_template, self._online.chat_template_content_format
        ).with_defaults(merge_kwargs(self._online.default_chat_template_kwargs, {"tools": tools, "tokenize": tokenize}))


def _exchange(old: TokenisedText, ids: array[int]) -> Splice:
    """The splice to ready token ids, which stand for no text."""
    keep = longest_common_prefix(old.ids, ids)
    return Splice("", keep, ids[keep:], array("I"), array("I"))
