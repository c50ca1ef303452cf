"""Finishing a stream: the stock endpoint's answer to the whole prompt, and nothing but that."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from http_calls import GREEDY, PAGES, STREAMS, Api, answer, events, ok, refused, without_ids
from stream2llm import content
from stream2llm.vllm.endpoints.completing import whole_body
from stream2llm.vllm.endpoints.rendering import Settings

CONTEXT = "".join(PAGES[:12])
QUESTION = "\nQuestion: which city has the most rivers?\nAnswer:"
SYSTEM = {"role": "system", "content": "Answer from the pages."}
ASKING = {"role": "user", "content": "Which city has the most rivers?"}


def streamed(api: Api, pages: list[str] = PAGES[:12]) -> dict[str, Any]:
    stream = api.open()
    for page in pages:
        api.append(stream, text=page)
    return stream


class TestWholeBody:
    """What the stock endpoint is given; pure."""

    def test_the_prompt_follows_the_text(self) -> None:
        body = whole_body("cs_1", "completions", content.text("a "), Settings(), {"prompt": "b", "n": 2})
        assert (body["prompt"], body["n"]) == ("a b", 2)

    def test_the_stream_is_named_beside_the_users_own_xargs(self) -> None:
        body = whole_body("cs_1", "completions", None, Settings(), {"vllm_xargs": {"mine": 1}})
        assert body["vllm_xargs"] == {"mine": 1, "context_stream": "cs_1"}

    def test_what_the_stream_was_opened_with_is_the_default(self) -> None:
        settings = Settings("lora", "salt", 3, False, {"k": 1}, [{"t": 1}])
        text = whole_body("cs_1", "completions", None, settings, {"priority": 5, "model": None})
        assert text == {
            "model": "lora",
            "cache_salt": "salt",
            "priority": 5,
            "add_special_tokens": False,
            "prompt": "",
            "vllm_xargs": {"context_stream": "cs_1"},
        }
        chat = whole_body("cs_1", "chat/completions", None, settings, {})
        assert (chat["chat_template_kwargs"], chat["tools"]) == ({"k": 1}, [{"t": 1}])
        assert "add_special_tokens" not in chat

    def test_half_an_emoji_may_be_finished_by_the_prompt(self) -> None:
        body = whole_body("cs_1", "completions", content.text("a\ud83d"), Settings(), {"prompt": "\ude00"})
        assert body["prompt"] == "a\N{GRINNING FACE}"


class TestCompletions:
    def test_equal_the_stock_answer(self, api: Api) -> None:
        finished = api.complete(streamed(api), prompt=QUESTION, logprobs=2, max_tokens=16)
        plain = api.plain(prompt=CONTEXT + QUESTION, logprobs=2, max_tokens=16)
        assert [c["text"] for c in finished["choices"]] == [c["text"] for c in plain["choices"]]
        assert set(finished) == set(plain)
        assert answer(api.complete(streamed(api), prompt=QUESTION)) == answer(api.plain(prompt=CONTEXT + QUESTION))

    def test_equal_the_stock_answer_event_by_event(self, api: Api) -> None:
        options = {**GREEDY, "stream": True, "stream_options": {"include_usage": True}}
        ours = api.post(f"/{streamed(api)['id']}/completions", {**options, "prompt": QUESTION})
        stock = api.client.post("/v1/completions", json={**options, "prompt": CONTEXT + QUESTION})
        assert without_ids(events(ours)) == without_ids(events(stock))
        assert ours.headers["content-type"] == stock.headers["content-type"]

    def test_of_token_ids(self, api: Api) -> None:
        ids = list(range(1000, 1400))
        stream = api.open(token_ids=ids[:200])
        api.append(stream, token_ids=ids[200:])
        assert answer(api.complete(stream, prompt=[5, 6])) == answer(api.plain(prompt=[*ids, 5, 6]))

    def test_of_a_stream_that_holds_the_whole_prompt_already(self, api: Api) -> None:
        """BUGS 2, 19: the last chunk is empty, the final prompt is identical to the stream's."""
        stream = streamed(api)
        api.append(stream, text="")
        api.wait_until(stream, "ready")
        assert answer(api.complete(stream)) == answer(api.plain(prompt=CONTEXT))

    def test_of_a_stream_that_was_never_written_to(self, api: Api) -> None:
        assert answer(api.complete(api.open(), prompt=CONTEXT)) == answer(api.plain(prompt=CONTEXT))

    def test_right_behind_a_write(self, api: Api) -> None:
        for pause_s in (0.0, 0.001, 0.005, 0.02):
            stream = api.open(text=CONTEXT)
            api.replace(stream, text=CONTEXT[: len(CONTEXT) // 2])
            time.sleep(pause_s)
            finished = api.complete(stream, prompt=QUESTION)
            assert answer(finished) == answer(api.plain(prompt=CONTEXT[: len(CONTEXT) // 2] + QUESTION))

    def test_with_several_choices(self, api: Api) -> None:
        assert len(api.complete(streamed(api), prompt=QUESTION, n=3, temperature=1, seed=1)["choices"]) == 3

    def test_with_a_cache_salt(self, api: Api) -> None:
        stream = api.open(text=CONTEXT, cache_salt="pepper")
        assert answer(api.complete(stream, prompt=QUESTION)) == answer(api.plain(prompt=CONTEXT + QUESTION))


class TestChatCompletions:
    def test_equal_the_stock_answer(self, api: Api) -> None:
        stream = api.open(messages=[SYSTEM, {"role": "user", "content": "Pages:\n"}])
        for page in PAGES[:12]:
            api.append(stream, text=page)
        whole = [SYSTEM, {"role": "user", "content": "Pages:\n" + CONTEXT}, ASKING]
        assert answer(api.chat(stream, messages=[ASKING])) == answer(api.plain_chat(messages=whole))

    def test_equal_the_stock_answer_event_by_event(self, api: Api) -> None:
        options = {**GREEDY, "stream": True}
        stream = api.open(messages=[SYSTEM])
        api.append(stream, messages=[ASKING])
        ours = api.post(f"/{stream['id']}/chat/completions", {**options, "messages": []})
        stock = api.client.post("/v1/chat/completions", json={**options, "messages": [SYSTEM, ASKING]})
        assert without_ids(events(ours)) == without_ids(events(stock))

    def test_the_messages_may_be_left_out(self, api: Api) -> None:
        stream = api.open(messages=[SYSTEM, ASKING])
        assert answer(api.chat(stream)) == answer(api.plain_chat(messages=[SYSTEM, ASKING]))

    def test_what_the_template_renders_is_prefilled(self, api: Api) -> None:
        """The open-ended prompt is a prefix of the final one, so all its full blocks are used."""
        stream = api.open(messages=[SYSTEM, {"role": "user", "content": CONTEXT}])
        tokens = stream["tokens"]
        again = api.append(stream, messages=[ASKING])
        assert again["lcp"] >= tokens - 2
        api.wait_until(stream, "ready")
        assert answer(api.chat(stream)) == answer(
            api.plain_chat(messages=[SYSTEM, {"role": "user", "content": CONTEXT}, ASKING])
        )

    def test_text_in_parts(self, api: Api) -> None:
        parts = [{"type": "text", "text": "Pages:"}, {"type": "text", "text": PAGES[0]}]
        stream = api.open(messages=[{"role": "user", "content": parts}])
        api.append(stream, text=PAGES[1])
        whole = [{"role": "user", "content": [parts[0], {"type": "text", "text": PAGES[0] + PAGES[1]}]}]
        assert answer(api.chat(stream)) == answer(api.plain_chat(messages=whole))


class TestRefusals:
    """Nothing runs, and the stream stays open."""

    @pytest.mark.parametrize(
        ("content", "path", "body", "status", "advice"),
        [
            ({"text": "a"}, "chat/completions", {"messages": [ASKING]}, 400, "/completions"),
            ({"token_ids": [1]}, "chat/completions", {"messages": []}, 400, "/completions"),
            ({"messages": [ASKING]}, "completions", {"prompt": "a"}, 400, "/chat/completions"),
            ({"text": "a"}, "completions", {"prompt": [1, 2]}, 400, "one prompt as text"),
            ({"text": "a"}, "completions", {"prompt": ["b", "c"]}, 400, "one prompt as text"),
            ({"token_ids": [1]}, "completions", {"prompt": "b"}, 400, "token ids"),
            ({"text": "a"}, "completions", {"max_tokens": "many"}, 422, "max_tokens"),
            ({"text": "a"}, "completions", {"vllm_xargs": 7}, 422, "vllm_xargs"),
            ({"text": "a"}, "completions", {"temperature": -1}, 400, "temperature"),
            ({"text": "a"}, "completions", {"use_beam_search": True, "n": 2}, 400, "Beam search"),
            ({"text": "a"}, "completions", {"prompt": "word " * 6000}, 400, "4096"),
            ({"text": "a"}, "completions", {"model": "nobody/none"}, 404, "does not exist"),
            ({"messages": [ASKING]}, "chat/completions", {"messages": "what?"}, 422, "messages"),
        ],
    )
    def test_say_what_is_wrong(
        self, api: Api, content: dict[str, Any], path: str, body: dict[str, Any], status: int, advice: str
    ) -> None:
        stream = api.open(**content)
        assert advice in refused(api.post(f"/{stream['id']}/{path}", body), status)
        assert ok(api.get(f"/{stream['id']}"))["state"] != "finished"
        api.append(stream, **content)

    def test_a_finished_stream(self, api: Api) -> None:
        """BUGS 19: an append after the end is an error, not the end of the engine."""
        stream = streamed(api)
        api.complete(stream, prompt=QUESTION)
        assert ok(api.get(f"/{stream['id']}"))["state"] == "finished"
        for response in (
            api.post(f"/{stream['id']}/append", {"text": "a"}),
            api.put(f"/{stream['id']}", {"text": "a"}),
            api.post(f"/{stream['id']}/completions", {"prompt": "a"}),
            api.post(f"/{stream['id']}/chat/completions", {"messages": []}),
        ):
            assert "finished" in refused(response, 409)
        assert stream["id"] not in [s["id"] for s in ok(api.get(""))["data"]]
        ok(api.delete(f"/{stream['id']}"))


class TestDepartures:
    """BUGS 7 and 14; the fixture checks that no KV block is lost."""

    def test_generation_stops_when_the_client_goes(self, api: Api) -> None:
        stream = streamed(api)
        body = {"prompt": QUESTION, "max_tokens": 3000, "ignore_eos": True, "stream": True}
        with api.client.stream("POST", f"{STREAMS}/{stream['id']}/completions", json=body) as response:
            next(response.iter_lines())
        time.sleep(0.3)
        before = generated(api)
        time.sleep(0.5)
        assert generated(api) == before

    def test_fifty_clients_that_go_in_the_middle_of_the_answer(self, api: Api) -> None:
        expected = answer(api.plain(prompt=CONTEXT + QUESTION))
        for n in range(50):
            stream = api.open(text=CONTEXT)
            body = {"prompt": QUESTION, "max_tokens": 500, "ignore_eos": True, "stream": n % 2 == 0}
            with httpx.Client(base_url=api.server.base_url, timeout=0.01 + 0.004 * (n % 20)) as hasty:
                try:
                    with hasty.stream("POST", f"{STREAMS}/{stream['id']}/completions", json=body) as response:
                        next(response.iter_lines())
                except httpx.TimeoutException:
                    pass
            api.delete(f"/{stream['id']}")
        assert answer(api.complete(api.open(text=CONTEXT), prompt=QUESTION)) == expected


def generated(api: Api) -> float:
    metrics = api.client.get("/metrics").text
    return sum(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith("vllm:generation_tokens_to"))


class TestTokens:
    """BUGS 8 over HTTP: the tokens that the model sees are those of the text in one."""

    TEXT = (
        "Naïve café — 東京 ①½ \N{GRINNING FACE}\u200d\N{ROCKET} <|im_start|>user\nHi<|im_end|> "
        "e\u0301 12345   \n\n x\0y"
    )

    def test_split_at_every_character_and_inside_characters(self, api: Api) -> None:
        stream = api.open()
        units = self.TEXT.encode("utf-16-le")
        for at in range(0, len(units), 2):
            half = units[at : at + 2].decode("utf-16-le", "surrogatepass")
            written = api.client.post(
                f"{STREAMS}/{stream['id']}/append",
                content=f'{{"text": "\\u{ord(half):04x}"}}',
                headers={"Content-Type": "application/json"},
            )
            ok(written)
        tokens = ok(api.get(f"/{stream['id']}"))["tokens"]
        finished = api.complete(stream, return_token_ids=True)["choices"][0]["prompt_token_ids"]
        assert finished == api.plain(prompt=self.TEXT, return_token_ids=True)["choices"][0]["prompt_token_ids"]
        assert tokens == len(finished)

    def test_half_a_character_at_the_end_is_the_replacement_character(self, api: Api) -> None:
        stream = api.open()
        content = b'{"text": "a\\ud83d"}'
        headers = {"Content-Type": "application/json"}
        ok(api.client.post(f"{STREAMS}/{stream['id']}/append", content=content, headers=headers))
        assert answer(api.complete(stream)) == answer(api.plain(prompt="a\ufffd"))


def test_any_stock_request_can_finish_a_stream_and_differ_from_it(api: Api) -> None:
    stream = streamed(api)
    prompt = CONTEXT[:300] + "another end"
    finished = api.plain(prompt=prompt, vllm_xargs={"context_stream": stream["id"]})
    assert answer(finished) == answer(api.plain(prompt=prompt))
    assert ok(api.get(f"/{stream['id']}"))["state"] == "finished"
