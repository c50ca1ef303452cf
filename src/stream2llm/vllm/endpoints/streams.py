"""The context streams that this server process has to do with."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import fields
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.inputs import tokens_input
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError

from stream2llm.content import Content, pieces_of
from stream2llm.stream import StreamRefusedError
from stream2llm.vllm.endpoints.errors import ApiError
from stream2llm.vllm.endpoints.models import OpenRequest
from stream2llm.vllm.endpoints.rendering import Prompt, PromptRenderer, Settings
from stream2llm.vllm.endpoints.writer import StreamWriter, View, Write, make_source, restore_content
from stream2llm.vllm.ops import Ack, ContextOps

if TYPE_CHECKING:
    from starlette.datastructures import State
    from vllm.engine.protocol import EngineClient
    from vllm.v1.engine import EngineCoreRequest

_MAX_VIEWS = 1024
SWEEP_SECONDS = 1.0
_LOOK_AT = 4  # least recently used views, at each new one


class ContextStreams:
    """Opens, writes, reads and closes streams. Holds nothing that the engine core does not hold too."""

    def __init__(self, engine_client: EngineClient, state: State) -> None:
        self.ops = ContextOps(engine_client)
        self._engine: Any = engine_client
        self._serving: Any = state.openai_serving_completion
        self._prompts = PromptRenderer(state.online_renderer)
        self._writers: OrderedDict[str, StreamWriter] = OrderedDict()

    async def open(self, request: OpenRequest) -> Ack:
        """Open a stream. Raises `ApiError`, `ContentError`, `StreamRefusedError` or pydantic's `ValidationError`."""
        self._engine.check_admission(1)
        held = request.to_content()
        settings = Settings(**{name.name: getattr(request, name.name) for name in fields(Settings)})
        template = await self._template(settings)
        change = await self._prompts.change(Prompt(), held, settings)
        stream_id = request.id or self.ops.new_id()
        source = make_source(held.kind if held is not None else None, settings)
        pieces = pieces_of(held) if held is not None else []
        ack = await self.ops.open(stream_id, request.ttl, source, pieces, change.tail, template)
        if held is not None and ack.version == 0:  # content without tokens is a version all the same
            ack = await self.ops.put(
                stream_id, created_at=ack.created_at, base_version=0, writes=1, keep=0, tail=[], pieces=[]
            )
        view = View(ack.version, ack.created_at, settings, held)
        view.prompt.apply(change)
        self._remember(StreamWriter(stream_id, self.ops, self._prompts, view, ack.expires_at))
        return ack

    async def write(self, stream_id: str, write: Write) -> Ack:
        """Append or replace. Raises as `open` does."""
        try:
            return await self.writer(stream_id).submit(write)
        except StreamRefusedError as error:
            if error.code in ("unknown", "finished"):
                self.forget(stream_id)
            raise

    async def read(self, stream_id: str) -> tuple[Ack, Content | None]:
        """A stream's state and content, of one version."""
        kept = await self.ops.read(stream_id)
        return kept.ack, restore_content(kept)

    async def close(self, stream_id: str) -> None:
        """Close a stream. Raises `StreamRefusedError`."""
        self.forget(stream_id)
        await self.ops.close(stream_id)

    def writer(self, stream_id: str) -> StreamWriter:
        """The writer of a stream, which need not exist: its first op will tell."""
        writer = self._writers.get(stream_id)
        if writer is None:
            writer = StreamWriter(stream_id, self.ops, self._prompts)
            self._remember(writer)
        self._writers.move_to_end(stream_id)
        return writer

    def forget(self, stream_id: str) -> None:
        """Drop what is known of a stream; costs no more than reading it again."""
        self._writers.pop(stream_id, None)

    async def sweep(self) -> None:
        """Have expired streams dropped, for as long as the engine lives: an idle engine has no clock of its own."""
        with suppress(EngineDeadError):
            while True:
                await asyncio.sleep(SWEEP_SECONDS)
                now = time.time()
                due = [writer for writer in self._writers.values() if writer.idle and writer.expires_at <= now]
                if due:
                    await self.ops.sweep()
                for writer in due:
                    self.forget(writer.id)

    def _remember(self, writer: StreamWriter) -> None:
        now = time.time()
        for other in list(itertools.islice(self._writers.values(), _LOOK_AT)):
            if other.idle and (other.expires_at < now or len(self._writers) >= _MAX_VIEWS):
                self.forget(other.id)
        self._writers[writer.id] = writer

    async def _template(self, settings: Settings) -> EngineCoreRequest:
        """A request that the engine makes every version of the stream from; its prompt stands for nothing."""
        request = CompletionRequest(model=settings.model, prompt=[0], cache_salt=settings.cache_salt)
        refusal = await self._serving._check_model(request)
        if refusal is not None:
            raise ApiError(HTTPStatus(refusal.error.code), refusal.error.message, "model")
        return self._engine.input_processor.process_inputs(
            f"context-stream-{uuid4().hex}",
            tokens_input([0], cache_salt=settings.cache_salt),
            # Its token is dropped. Greedy, it does not make vLLM sample the greedy requests beside it otherwise.
            SamplingParams(max_tokens=1, temperature=0),
            ("generate",),
            lora_request=self._serving._maybe_get_adapters(request),
            priority=settings.priority,
        )
