"""From content to token ids with vLLM's real renderer: the prompt so far is the beginning of the final prompt."""

from __future__ import annotations

import asyncio
import os
import time
from functools import cache
from statistics import median
from typing import Any

import pytest

from stream2llm import content
from stream2llm.content import Content
from stream2llm.stream import longest_common_prefix
from stream2llm.vllm.endpoints.errors import ApiError
from stream2llm.vllm.endpoints.rendering import Change, Prompt, PromptRenderer, Settings
from tiny_model import tiny_model

MAX_MODEL_LEN = 20000
PROSE = "Prefill overlaps retrieval, so the first token comes soon after the last page has arrived. "

TEMPLATES = {
    "plain": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "trimming": "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}",
    # As Qwen3 (Qwen3 1826): the thoughts of answers before the last question are taken out.
    "rewriting": "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.index0 < ns.last %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    # As many: roles must alternate, and there must be a question.
    "demanding": "{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}"
    "{{ raise_exception('No user query found in messages.') }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "with the date and tools": "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}{{ today }}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
}


@cache
def online_renderer(template: str | None) -> Any:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.renderers import renderer_from_config
    from vllm.renderers.online_renderer import OnlineRenderer

    arguments = AsyncEngineArgs(model=tiny_model(), max_model_len=MAX_MODEL_LEN, dtype="float32", enforce_eager=True)
    config = arguments.create_engine_config()
    return OnlineRenderer(
        config.model_config,
        renderer_from_config(config),
        request_logger=None,
        chat_template=template,
        chat_template_content_format="auto",
    )


class Held:
    """A stream's content and prompt, as the writer keeps them."""

    def __init__(self, template: str | None = None, **settings: Any) -> None:
        self.online = online_renderer(template)
        self.prompts = PromptRenderer(self.online)
        self.settings = Settings(**settings)
        self.content: Content | None = None
        self.prompt = Prompt()

    def write(self, more: Content, *, replaces: bool = False) -> Change:
        new = more if replaces else content.append(self.content, more)
        before = self.prompt.token_ids
        change = asyncio.run(self.prompts.change(self.prompt, new, self.settings))
        self.prompt.apply(change)
        self.content = new
        assert self.prompt.token_ids == [*before[: change.keep], *change.tail]
        return change

    def final_ids(self, last: list[dict[str, Any]]) -> list[int]:
        """The token ids of the final chat request, from vLLM's own rendering."""
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        assert isinstance(self.content, content.Messages)
        request = ChatCompletionRequest(
            messages=[*self.content.closed, *last],
            chat_template_kwargs=self.settings.chat_template_kwargs,
            **({"tools": self.settings.tools, "tool_choice": "none"} if self.settings.tools else {}),
        )
        _, (prompt,) = asyncio.run(self.online.render_chat(request))
        return list(prompt["prompt_token_ids"])

    def lost(self, last: list[dict[str, Any]]) -> int:
        """Tokens of the prompt so far that the final request cannot use."""
        ids = self.prompt.token_ids
        return len(ids) - longest_common_prefix(content.token_ids(ids).ids, content.token_ids(self.final_ids(last)).ids)


def user(said: str) -> dict[str, Any]:
    return {"role": "user", "content": said}


SYSTEM = {"role": "system", "content": "Be brief."}


class TestText:
    def test_token_ids_are_those_of_a_completion(self) -> None:
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest

        held = Held()
        for piece in [PROSE * 30, "wo", "rd", "", " é\ud83d", "\ude00", "<|im_", "end|>"]:
            held.write(content.text(piece))
        assert isinstance(held.content, content.Text)
        request = CompletionRequest(prompt=held.content.closed)
        (stock,) = asyncio.run(held.online.render_completion(request))
        assert held.prompt.token_ids == list(stock["prompt_token_ids"])

    def test_only_the_end_is_written_anew(self) -> None:
        held = Held()
        held.write(content.text(PROSE * 200))
        tokens = len(held.prompt.token_ids)
        change = held.write(content.text("One more."))
        assert change.keep > tokens - 20
        assert len(change.tail) < 30

    def test_too_long_for_the_model(self) -> None:
        held = Held()
        with pytest.raises(ApiError, match=str(MAX_MODEL_LEN - 1)):
            held.write(content.text("word " * MAX_MODEL_LEN))
        assert held.prompt.token_ids == []


class TestMessages:
    @pytest.mark.parametrize("template", TEMPLATES)
    def test_pages_in_one_message_are_all_of_use(self, template: str) -> None:
        held = Held(TEMPLATES[template])
        held.write(content.messages([SYSTEM, user("Pages:\n")]))
        for n in range(20):
            held.write(content.text(f"{n}. {PROSE}"))
        assert held.lost([]) <= 2
        assert held.lost([user("Which?")]) <= 2

    @pytest.mark.parametrize("template", ["plain", "trimming", "demanding"])
    def test_messages_that_follow_each_other_are_all_of_use(self, template: str) -> None:
        held = Held(TEMPLATES[template])
        for n in range(10):
            held.write(content.messages([user(f"{n} {PROSE}"), {"role": "assistant", "content": f"Yes, {PROSE}"}]))
        assert held.lost([user("Which?")]) <= 2

    def test_a_template_that_rewrites_costs_what_it_rewrote(self) -> None:
        """BUGS 18: the prompt stays right, and the lost prefix shows in what is kept."""
        held = Held(TEMPLATES["rewriting"])
        thoughtful = {"role": "assistant", "content": f"<think>{PROSE * 5}</think>Yes."}
        held.write(content.messages([user("Is it?")]))
        held.write(content.messages([thoughtful]))
        tokens = len(held.prompt.token_ids)
        change = held.write(content.messages([user("Really?")]))
        assert change.keep < tokens - 50
        assert held.lost([]) <= 2

    def test_a_template_that_wants_a_question_is_given_one(self) -> None:
        held = Held(TEMPLATES["demanding"])
        held.write(content.messages([{"role": "system", "content": PROSE * 10}]))
        tokens = len(held.prompt.token_ids)
        assert tokens > 100
        assert held.lost([user("Which?")]) <= 2

    def test_the_template_is_given_what_it_will_be_given_at_the_end(self) -> None:
        function = {"name": "look_up", "description": "Look it up.", "parameters": {"type": "object", "properties": {}}}
        held = Held(
            TEMPLATES["with the date and tools"],
            chat_template_kwargs={"today": "Monday"},
            tools=[{"type": "function", "function": function}],
        )
        held.write(content.messages([user(PROSE)]))
        assert len(held.prompt.token_ids) > 40
        assert held.lost([]) <= 2

    def test_a_template_that_the_server_does_not_trust(self) -> None:
        held = Held(chat_template_kwargs={"chat_template": "{{ messages }}"})
        with pytest.raises(ApiError, match="trust-request-chat-template"):
            held.write(content.messages([user("a")]))

    def test_what_the_template_refuses_is_refused_in_its_words(self) -> None:
        held = Held("{{ raise_exception('No, thank you.') }}")
        with pytest.raises(ApiError, match="No, thank you"):
            held.write(content.messages([user("a")]))


@pytest.mark.parametrize("kind", ["text", "token_ids", "messages"])
def test_the_cost_of_a_chunk_does_not_grow_with_the_prompt(kind: str) -> None:
    """BUGS 11 and 20: 1000 chunks of 16 tokens, processor time on the way from content to token ids."""
    held = Held()
    if kind == "messages":
        held.write(content.messages([user("Pages:")]))
    costs: list[float] = []

    async def append_all() -> None:
        for n in range(1000):
            more = content.token_ids([n + 1000] * 16) if kind == "token_ids" else content.text(f" w{n % 10} the" * 4)
            start = time.process_time()
            new = content.append(held.content, more)
            change = await held.prompts.change(held.prompt, new, held.settings)
            held.prompt.apply(change)
            held.content = new
            costs.append(time.process_time() - start)

    asyncio.run(append_all())
    assert len(held.prompt.token_ids) >= 12000
    early, late = median(costs[10:110]), median(costs[-100:])
    assert late <= 1.5 * early + 50e-6, (early, late)
