"""Several API-server processes: a stream works whichever of them a request reaches."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

import serving
from http_calls import PAGES, Api, answer, ok


@pytest.fixture(scope="module")
def api(model: str) -> Iterator[Api]:
    with serving.running_server(serving.OURS, model, *serving.SMALL, "--api-server-count", "2") as server:
        # A connection of its own for each request, so that any process may take it.
        limits = httpx.Limits(max_keepalive_connections=0)
        with httpx.Client(base_url=server.base_url, timeout=120, limits=limits) as client:
            yield Api(client, server)


def test_writes_of_one_client_build_on_each_other(api: Api) -> None:
    stream = api.open()
    for page in PAGES[:20]:
        api.append(stream, text=page)
    api.replace(stream, text="".join(PAGES[:10]))
    for page in PAGES[20:30]:
        api.append(stream, text=page)
    whole = "".join(PAGES[:10] + PAGES[20:30])
    assert api.read(stream)["text"] == whole
    assert answer(api.complete(stream, prompt="\nSo")) == answer(api.plain(prompt=whole + "\nSo"))


def test_no_append_of_many_writers_is_lost(api: Api) -> None:
    stream = api.open(text="")
    pieces = [f"<{n}>" for n in range(120)]
    with ThreadPoolExecutor(12) as pool:
        versions = [ack["version"] for ack in pool.map(lambda piece: api.append(stream, text=piece), pieces)]
    assert sorted(versions) == list(range(2, len(pieces) + 2))
    in_order = [piece for _, piece in sorted(zip(versions, pieces, strict=True))]
    assert api.read(stream)["text"] == "".join(in_order)


def test_of_many_that_expect_the_same_version_one_wins(api: Api) -> None:
    stream = api.open(text="")
    body = {"text": "x", "expected_version": 1}
    with ThreadPoolExecutor(12) as pool:
        statuses = list(pool.map(lambda _: api.post(f"/{stream['id']}/append", body).status_code, range(12)))
    assert sorted(statuses) == [200] + [409] * 11


def test_a_version_that_another_process_made_may_be_expected(api: Api) -> None:
    stream = api.open(text="")
    for version in range(1, 12):
        api.append(stream, text="x", expected_version=version)


def test_an_id_that_is_used_again_is_another_stream(api: Api) -> None:
    for use in range(8):
        stream = api.open(id="again", text=f"Use {use}. ")
        for _ in range(4):
            api.append(stream, text=f"More of {use}. ")
        whole = f"Use {use}. " + f"More of {use}. " * 4
        assert api.read(stream)["text"] == whole
        if use % 2:
            assert answer(api.complete(stream, prompt="So")) == answer(api.plain(prompt=whole + "So"))
        ok(api.delete("/again"))
