"""Open, read, list, append, replace, close: docs/http-api.md, route by route."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from http_calls import PAGES, Api, ok, refused
from stream2llm.vllm.endpoints import ContextStreamsPlugin

FIELDS = {
    "id",
    "object",
    "state",
    "version",
    "tokens",
    "lcp",
    "invalidated_tokens",
    "computed_tokens",
    "created_at",
    "expires_at",
}
TEXT = "".join(PAGES[:8])


class TestOpen:
    def test_with_content_it_is_version_1(self, api: Api) -> None:
        stream = api.open(text=TEXT)
        assert set(stream) == FIELDS
        assert stream["object"] == "context_stream"
        assert stream["version"] == 1
        assert stream["tokens"] > 100
        assert stream["lcp"] == 0
        assert stream["expires_at"] - stream["created_at"] == pytest.approx(600)

    def test_empty_it_is_version_0(self, api: Api) -> None:
        stream = api.open()
        assert (stream["version"], stream["tokens"], stream["state"]) == (0, 0, "empty")

    @pytest.mark.parametrize("content", [{"text": ""}, {"token_ids": []}, {"messages": []}])
    def test_content_without_tokens_is_content(self, api: Api, content: dict[str, Any]) -> None:
        stream = api.open(**content)
        assert (stream["version"], stream["tokens"], stream["state"]) == (1, 0, "empty")
        (kind,) = content
        assert api.read(stream)[kind] == content[kind]

    def test_it_is_prefilled_in_the_background(self, api: Api) -> None:
        stream = api.open(text=TEXT)
        ready = api.wait_until(stream, "ready")
        assert ready["tokens"] - 32 <= ready["computed_tokens"] <= ready["tokens"]

    def test_under_an_id_of_ones_own(self, api: Api) -> None:
        assert api.open(id="my-stream_1")["id"] == "my-stream_1"
        assert "exists already" in refused(api.post("", {"id": "my-stream_1"}), 409)

    def test_for_a_model_that_is_not_served(self, api: Api) -> None:
        assert "does not exist" in refused(api.post("", {"model": "nobody/none"}), 404)

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({"id": "ws"}, "id"),
            ({"id": "jsonl"}, "id"),
            ({"id": "a b"}, "id"),
            ({"id": "x" * 65}, "id"),
            ({"ttl": 0}, "ttl"),
            ({"ttl": 86401}, "ttl"),
            ({"txt": "a"}, "txt"),
            ({"text": 1}, "text"),
            ({"token_ids": ["1"]}, "token_ids"),
            ({"messages": "hello"}, "messages"),
            ({"messages": [{"content": "no role"}]}, "role"),
            ({"cache_salt": ""}, "cache_salt"),
            ({"text": "a", "token_ids": [1]}, "text, token_ids and messages"),
        ],
    )
    def test_a_body_of_another_form_is_refused_and_the_field_named(
        self, api: Api, body: dict[str, Any], field: str
    ) -> None:
        assert field in refused(api.post("", body), 422)

    @pytest.mark.parametrize("body", [b"{", b"[]", b"", b'"\xff"'])
    def test_a_body_that_is_no_json_object(self, api: Api, body: bytes) -> None:
        response = api.client.post("/v1/context_streams", content=body, headers={"Content-Type": "application/json"})
        refused(response, 422)

    def test_images_belong_into_the_final_request(self, api: Api) -> None:
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
        message = {"role": "user", "content": [image]}
        assert "final request" in refused(api.post("", {"messages": [message]}), 400)


class TestAppend:
    def test_adds_to_the_text(self, api: Api) -> None:
        stream = api.open(text=PAGES[0])
        second = api.append(stream, text=PAGES[1])
        assert second["version"] == 2
        assert second["lcp"] >= stream["tokens"] - 2
        assert api.read(stream)["text"] == PAGES[0] + PAGES[1]

    def test_an_empty_append_is_a_version(self, api: Api) -> None:
        stream = api.open(text=TEXT)
        again = api.append(stream, text="")
        assert (again["version"], again["tokens"], again["lcp"]) == (2, stream["tokens"], stream["tokens"])

    def test_puts_off_the_expiry(self, api: Api) -> None:
        stream = api.open(text="a")
        time.sleep(0.05)
        assert api.append(stream, text="b")["expires_at"] > stream["expires_at"]

    def test_of_another_kind_is_refused(self, api: Api) -> None:
        stream = api.open(text=TEXT)
        message = refused(api.post(f"/{stream['id']}/append", {"token_ids": [1]}), 400)
        assert "replace the whole content" in message
        assert api.append(stream, text="more")["version"] == 2

    def test_text_continues_the_last_message(self, api: Api) -> None:
        stream = api.open(messages=[{"role": "user", "content": "Pages: "}])
        api.append(stream, text=PAGES[0])
        assert api.read(stream)["messages"] == [{"role": "user", "content": "Pages: " + PAGES[0]}]

    def test_messages_follow_messages(self, api: Api) -> None:
        stream = api.open(messages=[{"role": "system", "content": "Be brief."}])
        api.append(stream, messages=[{"role": "user", "content": "Hello"}])
        assert [m["role"] for m in api.read(stream)["messages"]] == ["system", "user"]

    def test_a_token_id_that_the_model_does_not_have(self, api: Api) -> None:
        stream = api.open(token_ids=[5, 6])
        for unknown in (10**6, -1, 2**40):
            assert "token" in refused(api.post(f"/{stream['id']}/append", {"token_ids": [unknown]}), 400)
        assert api.append(stream, token_ids=[7])["tokens"] == 3

    def test_nothing_given_is_refused(self, api: Api) -> None:
        stream = api.open()
        assert "exactly one" in refused(api.post(f"/{stream['id']}/append", {}), 422)

    def test_an_emoji_cut_in_two_is_put_together(self, api: Api) -> None:
        stream = api.open()
        body = '{"text": "%s"}'
        for half in (r"a\ud83d", r"\ude00b"):
            response = api.client.post(
                f"/v1/context_streams/{stream['id']}/append",
                content=body % half,
                headers={"Content-Type": "application/json"},
            )
            ok(response)
        assert api.read(stream)["text"] == "a\N{GRINNING FACE}b"


class TestReplace:
    def test_keeps_what_is_common(self, api: Api) -> None:
        stream = api.open(text=TEXT)
        api.wait_until(stream, "ready")
        half = TEXT[: len(TEXT) // 2]
        now = api.replace(stream, text=half + "something else")
        assert now["version"] == 2
        assert stream["tokens"] // 2 - 8 < now["lcp"] < stream["tokens"] // 2 + 8
        assert now["invalidated_tokens"] > 32
        assert now["computed_tokens"] >= now["lcp"] - 32

    def test_by_the_same_text_invalidates_nothing(self, api: Api) -> None:
        stream = api.open(text=TEXT)
        again = api.replace(stream, text=TEXT)
        assert (again["lcp"], again["invalidated_tokens"]) == (stream["tokens"], 0)

    def test_may_change_the_kind(self, api: Api) -> None:
        stream = api.open(text=TEXT)
        assert api.replace(stream, token_ids=[1, 2, 3])["tokens"] == 3
        assert api.append(stream, token_ids=[4])["lcp"] == 3
        assert api.read(stream)["token_ids"] == [1, 2, 3, 4]
        api.replace(stream, messages=[{"role": "user", "content": "a"}])
        api.replace(stream, text=TEXT)
        assert api.append(stream, text="x")["lcp"] > 100


class TestExpectedVersion:
    def test_the_current_one_is_taken(self, api: Api) -> None:
        stream = api.open(text="a")
        assert api.append(stream, text="b", expected_version=1)["version"] == 2

    @pytest.mark.parametrize("expected", [0, 2, 99])
    def test_any_other_is_refused_and_changes_nothing(self, api: Api, expected: int) -> None:
        stream = api.open(text="a")
        for response in (
            api.post(f"/{stream['id']}/append", {"text": "b", "expected_version": expected}),
            api.put(f"/{stream['id']}", {"text": "b", "expected_version": expected}),
        ):
            assert "is at version 1" in refused(response, 409)
        assert api.read(stream)["text"] == "a"

    def test_of_many_writers_that_expect_the_same_one_wins(self, api: Api) -> None:
        stream = api.open(text="")
        body = {"text": "x", "expected_version": 1}
        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(lambda _: api.post(f"/{stream['id']}/append", body).status_code, range(8)))
        assert sorted(statuses) == [200] + [409] * 7
        assert api.read(stream)["text"] == "x"


class TestConcurrentWriters:
    def test_no_append_is_lost_and_each_has_its_own_version(self, api: Api) -> None:
        stream = api.open(text="")
        pieces = [f"<{writer}.{n}>" for n in range(12) for writer in range(8)]
        with ThreadPoolExecutor(8) as pool:
            acks = list(pool.map(lambda piece: api.append(stream, text=piece), pieces))
        assert sorted(ack["version"] for ack in acks) == list(range(2, len(pieces) + 2))
        held = api.read(stream)
        assert held["version"] == len(pieces) + 1
        in_order = [piece for _, piece in sorted(zip([a["version"] for a in acks], pieces, strict=True))]
        assert held["text"] == "".join(in_order)

    def test_replacements_between_appends_take_effect_in_order(self, api: Api) -> None:
        stream = api.open(text="start")

        def write(n: int) -> tuple[int, str, bool]:
            replaces = n % 7 == 3
            body = {"text": f"[{n}]"}
            response = api.put(f"/{stream['id']}", body) if replaces else api.post(f"/{stream['id']}/append", body)
            return ok(response)["version"], body["text"], replaces

        with ThreadPoolExecutor(8) as pool:
            written = sorted(pool.map(write, range(56)))
        expected = "start"
        for _, text, replaces in written:
            expected = text if replaces else expected + text
        assert api.read(stream)["text"] == expected

    def test_one_that_is_at_fault_does_not_harm_those_merged_with_it(self, api: Api) -> None:
        stream = api.open(text="")
        bodies: list[dict[str, Any]] = [{"text": "ok "}, {"token_ids": [1]}, {"text": "word " * 5000}] * 6
        with ThreadPoolExecutor(18) as pool:
            responses = list(pool.map(lambda body: api.post(f"/{stream['id']}/append", body), bodies))
        assert [r.status_code for r in responses] == [200, 400, 400] * 6
        assert api.read(stream)["text"] == "ok " * 6


class TestReadListClose:
    def test_read_gives_the_state_without_the_content(self, api: Api) -> None:
        stream = api.open(text=TEXT)
        assert set(ok(api.get(f"/{stream['id']}"))) == FIELDS

    def test_list_has_the_open_streams_oldest_first(self, api: Api) -> None:
        ids = [api.open(text=page)["id"] for page in PAGES[:3]]
        listed = ok(api.get(""))
        assert listed["object"] == "list"
        assert [stream["id"] for stream in listed["data"]] == ids

    def test_a_closed_stream_is_unknown(self, api: Api) -> None:
        stream = api.open(text=TEXT)
        assert ok(api.delete(f"/{stream['id']}")) == {
            "id": stream["id"],
            "object": "context_stream",
            "deleted": True,
        }
        assert_unknown(api, stream["id"])

    def test_an_expired_stream_is_unknown(self, api: Api) -> None:
        stream = api.open(text=TEXT, ttl=0.3)
        time.sleep(0.5)
        assert_unknown(api, stream["id"])

    def test_a_stream_that_never_was_is_unknown(self, api: Api) -> None:
        assert_unknown(api, "cs_never")

    @pytest.mark.parametrize("pause_s", [0.0, 0.02, 0.1, 0.5])
    def test_closing_in_any_state_frees_its_memory(self, api: Api, pause_s: float) -> None:
        """BUGS 13; the fixture checks the memory."""
        streams = [api.open(text="".join(PAGES)) for _ in range(3)]
        time.sleep(pause_s)
        for stream in streams:
            ok(api.delete(f"/{stream['id']}"))


def assert_unknown(api: Api, stream_id: str) -> None:
    for response in (
        api.get(f"/{stream_id}"),
        api.get(f"/{stream_id}?content=true"),
        api.post(f"/{stream_id}/append", {"text": "a"}),
        api.put(f"/{stream_id}", {"text": "a"}),
        api.post(f"/{stream_id}/completions", {"prompt": "a"}),
        api.post(f"/{stream_id}/chat/completions", {"messages": []}),
        api.delete(f"/{stream_id}"),
    ):
        assert stream_id in refused(response, 404)


class TestLimits:
    """BUGS 4: at the model's limit, one token decides; the others do not notice."""

    LIMIT = 4095

    def test_the_longest_prompt_leaves_room_for_one_token(self, api: Api) -> None:
        stream = api.open(token_ids=[7] * self.LIMIT)
        assert stream["tokens"] == self.LIMIT
        assert api.complete(stream, max_tokens=5)["usage"]["completion_tokens"] == 1

    def test_one_more_is_refused_with_the_limit_and_the_stream_goes_on(self, api: Api) -> None:
        neighbour = api.open(text=TEXT)
        stream = api.open(token_ids=[7] * (self.LIMIT - 1))
        assert str(self.LIMIT) in refused(api.post(f"/{stream['id']}/append", {"token_ids": [7, 7]}), 400)
        assert api.append(stream, token_ids=[7])["tokens"] == self.LIMIT
        assert str(self.LIMIT) in refused(api.put(f"/{stream['id']}", {"text": "word " * 6000}), 400)
        api.delete(f"/{stream['id']}")
        assert api.complete(neighbour)["choices"] == api.plain(prompt=TEXT)["choices"]

    def test_a_text_that_cannot_fit_is_refused_without_being_tokenised(self, api: Api) -> None:
        start = time.monotonic()
        assert "at least" in refused(api.post("", {"text": "a" * 8_000_000}), 400)
        assert time.monotonic() - start < 5


def test_the_statistics_count_what_the_scheduler_did(api: Api) -> None:
    (before,) = ok(api.get("/statistics"))["data"]
    stream = api.open(text=TEXT)
    api.complete(stream)
    (after,) = ok(api.get("/statistics"))["data"]
    assert after["opened"] == before["opened"] + 1
    assert after["finals"] == before["finals"] + 1
    assert after["tokens_computed"] > before["tokens_computed"]


@pytest.fixture(scope="module")
def app() -> FastAPI:
    app = FastAPI()
    ContextStreamsPlugin().attach_router(app)
    return app


def test_the_api_key_guards_every_route(app: FastAPI) -> None:
    from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware

    guarded = FastAPI()
    guarded.router.routes.extend(app.router.routes)
    guarded.add_middleware(AuthenticationMiddleware, tokens=["secret"])
    client = TestClient(guarded)
    for path, operations in app.openapi()["paths"].items():
        for method in operations:
            response = client.request(method, path.replace("{stream_id}", "cs_1"))
            assert response.status_code == 401, (method, path)


def test_openapi_describes_every_route_and_field(app: FastAPI) -> None:
    schema = app.openapi()
    operations = [op for path in schema["paths"].values() for op in path.values()]
    assert len(operations) == 11
    assert all(operation["description"] for operation in operations)
    for name in ("OpenRequest", "WriteRequest"):
        fields = schema["components"]["schemas"][name]["properties"]
        assert all(field.get("description") for field in fields.values()), name
    ttl = schema["components"]["schemas"]["OpenRequest"]["properties"]["ttl"]
    assert (ttl["exclusiveMinimum"], ttl["maximum"], ttl["default"]) == (0, 86400, 600)
