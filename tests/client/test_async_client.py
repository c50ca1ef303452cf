import asyncio
import inspect
from functools import wraps

import httpx
import pytest

import stream2llm
from stream2llm import AsyncClient, InvalidRequest, ServerUnavailable, StreamFinished

from .scripted_server import AT_ONCE, LOSE_ANSWER, RESTART, ScriptedServer


def in_a_loop(test):
    @wraps(test)
    def run(*args, **kwargs):
        asyncio.run(test(*args, **kwargs))

    return run


def client(scripted):
    return AsyncClient("http://server", transport=scripted.transport, retry=AT_ONCE)


@pytest.mark.parametrize("name", ["Client", "ContextStream", "AnswerStream"])
def test_the_surface_is_the_sync_ones(name):
    def surface(kind):
        members = inspect.getmembers(kind, lambda member: inspect.isfunction(member) or isinstance(member, property))
        return {
            name: list(inspect.signature(member).parameters) if inspect.isfunction(member) else "property"
            for name, member in members
            if not name.startswith("_") or name == "__init__"
        }

    assert surface(getattr(stream2llm, f"Async{name}")) == surface(getattr(stream2llm, name))


@in_a_loop
async def test_content_grows_is_replaced_and_is_answered():
    scripted = ScriptedServer()
    async with client(scripted) as c, c.stream(text="page one. ") as stream:
        assert (await stream.append("page two. ")).version == 2
        assert (await stream.replace("page three. ")).version == 3
        assert (await stream.status()).state == "ready"
        answer = await stream.complete(prompt="Question?")
    assert answer.text == "page three. Question?"


@in_a_loop
async def test_a_replacement_changes_the_kind_only_by_name():
    scripted = ScriptedServer()
    messages = [{"role": "user", "content": "Pages"}]
    async with client(scripted) as c, c.stream(messages) as stream:
        with pytest.raises(InvalidRequest, match="this stream holds messages"):
            await stream.replace("new")
        assert (await stream.append(messages)).version == 2
        await stream.replace(text="new")
        assert (await stream.complete()).text == "new"


@in_a_loop
async def test_a_streamed_answer_comes_in_pieces():
    async with client(ScriptedServer()).stream(messages=[{"role": "user", "content": "a b"}]) as stream:
        answer = await stream.chat(stream=True)
        assert [piece.text async for piece in answer] == ["a ", "b"]
        assert (answer.text, answer.finish_reason, answer.usage["completion_tokens"]) == ("a b", "stop", 2)


@in_a_loop
async def test_leaving_the_block_closes_the_stream_and_a_half_read_answer():
    scripted = ScriptedServer()
    async with client(scripted).stream(text="a"):
        pass
    assert scripted.streams == {}
    async with client(scripted).stream(text="a b c") as stream:
        answer = await stream.complete(stream=True)
        await anext(answer)
    assert answer.response.is_closed


@in_a_loop
async def test_faults_are_overcome_as_by_the_sync_client():
    scripted = ScriptedServer([None, LOSE_ANSWER, None, None, RESTART, None, LOSE_ANSWER])
    async with client(scripted).stream(text="a") as stream:
        await stream.append("b")
        await stream.append("c")
        await stream.append("d")
        assert (await stream.complete()).text == "abcd"


@in_a_loop
async def test_several_tasks_may_write():
    scripted = ScriptedServer()
    async with client(scripted).stream(text="") as stream:
        await asyncio.gather(*(stream.append("x") for _ in range(20)))
        assert scripted.content(stream.id) == {"text": "x" * 20}


@in_a_loop
async def test_a_cancelled_write_does_not_disturb_those_after_it():
    scripted = ScriptedServer()
    carried_out, hang = asyncio.Event(), asyncio.Event()

    async def slow(request):
        response = scripted(request)
        if request.content and b"lost" in request.content:
            carried_out.set()
            await hang.wait()
        return response

    c = AsyncClient("http://server", transport=httpx.MockTransport(slow), retry=AT_ONCE)
    async with c.stream(text="a") as stream:
        write = asyncio.create_task(stream.append("lost"))
        await carried_out.wait()
        write.cancel()
        with pytest.raises(asyncio.CancelledError):
            await write
        await stream.append("b")
        assert (await stream.complete()).text == "ab"


@in_a_loop
async def test_a_cancelled_write_that_arrives_late_comes_too_late():
    scripted = ScriptedServer()
    sent, late = asyncio.Event(), []

    async def slow(request):
        if request.content and b"lost" in request.content:
            late.append(request)
            sent.set()
            await asyncio.sleep(60)
        return scripted(request)

    c = AsyncClient("http://server", transport=httpx.MockTransport(slow), retry=AT_ONCE)
    async with c.stream(text="a") as stream:
        write = asyncio.create_task(stream.append("lost"))
        await sent.wait()
        write.cancel()
        await asyncio.wait([write])
        await stream.append("b")
        assert scripted(late[0]).status_code == 409
        assert (await stream.complete()).text == "ab"


@in_a_loop
async def test_a_cancelled_write_that_arrives_late_is_too_late_for_the_answer():
    scripted = ScriptedServer()
    late = []

    async def slow(request):
        if request.content and b"lost" in request.content:
            late.append(request)
            await asyncio.sleep(60)
        if request.url.path.endswith("completions"):
            assert scripted(late[0]).status_code == 409
        return scripted(request)

    c = AsyncClient("http://server", transport=httpx.MockTransport(slow), retry=AT_ONCE)
    async with c.stream(text="a") as stream:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.append("lost"), 0.05)
        assert (await stream.complete(prompt="?")).text == "a?"


@in_a_loop
async def test_a_cancelled_block_closes_the_stream():
    scripted = ScriptedServer()
    opened = asyncio.Event()

    async def work():
        async with client(scripted).stream(text="a"):
            opened.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await opened.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert scripted.streams == {}


@in_a_loop
async def test_a_server_that_is_down_is_unavailable():
    c = AsyncClient("http://server", transport=ScriptedServer([httpx.Response(503)] * 9).transport, retry=AT_ONCE)
    with pytest.raises(ServerUnavailable):
        await c.streams()


@in_a_loop
async def test_a_finished_stream_takes_no_more():
    async with client(ScriptedServer()).stream(text="a") as stream:
        await stream.complete()
        with pytest.raises(StreamFinished):
            await stream.append("b")
