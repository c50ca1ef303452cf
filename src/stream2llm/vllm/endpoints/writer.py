"""Writes to one stream, in order; those that pile up while the engine is busy become one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stream2llm import content
from stream2llm.content import Content, ContentError, Kind
from stream2llm.stream import StreamRefusedError
from stream2llm.vllm.endpoints.errors import ApiError
from stream2llm.vllm.endpoints.rendering import Prompt, PromptRenderer, Settings
from stream2llm.vllm.ops import Ack, ContextOps, StreamContent

_MAX_CONFLICTS = 100


@dataclass(frozen=True, slots=True)
class Write:
    """One client's write: content to append, or to put in place of all there is."""

    more: Content
    replaces: bool = False
    expected_version: int | None = None


@dataclass(slots=True)
class View:
    """What this process knows of a stream. The engine core has the say: a view may be old, or be lost.

    `created_at` tells a stream from one that had the same id before.
    """

    version: int
    created_at: float
    settings: Settings
    content: Content | None
    prompt: Prompt = field(default_factory=Prompt)

    def source(self, kind: Kind | None) -> dict[str, Any]:
        return make_source(kind, self.settings)


def make_source(kind: Kind | None, settings: Settings) -> dict[str, Any]:
    """What the engine keeps beside a stream's pieces, so that any process can go on with it."""
    return {"kind": kind, "settings": settings.to_json()}


def restore_content(kept: StreamContent) -> Content | None:
    return content.restore(kept.source["kind"], kept.pieces, kept.token_ids)


async def restore_view(stream_id: str, ops: ContextOps, prompts: PromptRenderer) -> View:
    """The view of a stream as the engine has it."""
    kept = await ops.read(stream_id)
    settings = Settings(**kept.source["settings"])
    held = restore_content(kept)
    prompt = Prompt()
    prompt.apply(await prompts.change(prompt, held, settings))
    if prompt.token_ids != kept.token_ids:  # a template that gives the time of day, for example
        prompt = Prompt()
        prompt.body.ids.extend(kept.token_ids)
    return View(kept.ack.version, kept.ack.created_at, settings, held, prompt)


@dataclass(frozen=True, slots=True)
class _Fold:
    """The writes of a batch that can be carried out, as one; and those that cannot, each with the reason."""

    content: Content | None
    pieces: list[str]
    replaces: bool
    accepted: list[_Pending]
    refused: list[tuple[_Pending, Exception]]


_Pending = tuple[Write, "asyncio.Future[Ack]"]


class StreamWriter:
    """Serialises the writes of one stream in this process.

    Several processes may write to a stream: the one that loses the race reads the stream again and builds its write
    anew, so no write is lost and none is applied to a version other than the current one.
    """

    def __init__(
        self,
        stream_id: str,
        ops: ContextOps,
        prompts: PromptRenderer,
        view: View | None = None,
        expires_at: float = math.inf,
    ) -> None:
        """`expires_at`, in Unix seconds, is when the stream may end unless it is written to."""
        self.id = stream_id
        self._ops = ops
        self._prompts = prompts
        self._view = view
        self._pending: list[_Pending] = []
        self._task: asyncio.Task[None] | None = None
        self.expires_at = expires_at

    @property
    def idle(self) -> bool:
        return self._task is None

    def submit(self, write: Write) -> asyncio.Future[Ack]:
        """Queue a write. Its future holds the answer, or `ApiError`, `ContentError` or `StreamRefusedError`."""
        future: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
        self._pending.append((write, future))
        if self._task is None:
            self._task = asyncio.create_task(self._drain())
        return future

    async def settled(self) -> View:
        """The stream once the writes under way are done. Raises `StreamRefusedError` if it is unknown or finished."""
        while self._task is not None:
            await asyncio.shield(self._task)
        status = await self._ops.status(self.id)
        if status.state == "finished":
            raise StreamRefusedError("finished", f"context stream {self.id} is finished", status.version)
        view = self._view
        if view is None or (view.version, view.created_at) != (status.version, status.created_at):
            return await self._read()
        return view

    async def _drain(self) -> None:
        try:
            while self._pending:
                batch, self._pending = self._pending, []
                try:
                    await self._apply(batch)
                except Exception as error:
                    self._view = None  # whether the engine has the write is not known
                    _refuse([(pending, error) for pending in batch])
        finally:
            self._task = None

    async def _read(self) -> View:
        self._view = None
        self._view = await restore_view(self.id, self._ops, self._prompts)
        return self._view

    async def _apply(self, batch: list[_Pending]) -> None:
        """Carry out a batch as one write, anew on each version that another process puts in between."""
        view, current = self._view, False
        for _ in range(_MAX_CONFLICTS):
            if view is None:
                view, current = await self._read(), True
            try:
                refused = await self._try(view, batch, current)
            except StreamRefusedError as error:
                if error.code != "conflict":
                    raise
                refused = True
            if not refused:
                return
            view = None
        raise StreamRefusedError("busy", f"context stream {self.id} is written to by too many at once; try again")

    async def _try(self, view: View, batch: list[_Pending], current: bool) -> bool:
        """Write the batch on top of `view`. True: something was refused that may be right on the current version."""
        fold = _fold(view, batch)
        if fold.refused and not current:
            return True
        _refuse(fold.refused)
        if not fold.accepted:
            return False
        try:
            change = await self._prompts.change(view.prompt, fold.content, view.settings)
            kind = fold.content.kind if fold.content is not None else None
            renewed = fold.replaces or kind != (view.content.kind if view.content is not None else None)
            ack = await self._ops.put(
                self.id,
                created_at=view.created_at,
                base_version=view.version,
                writes=len(fold.accepted),
                keep=change.keep,
                tail=change.tail,
                pieces=fold.pieces,
                source=view.source(kind) if renewed else None,
            )
        except (ApiError, StreamRefusedError) as error:
            if isinstance(error, StreamRefusedError) and error.code != "too_long":
                raise
            if not current:
                return True
            await self._one_by_one(fold.accepted, error)
            return False
        first = view.version + 1
        view.prompt.apply(change)
        view.content = fold.content
        self.expires_at = ack.expires_at
        view.version = ack.version
        for number, (_, future) in enumerate(fold.accepted, first):
            if not future.done():
                future.set_result(replace(ack, version=number))
        return False

    async def _one_by_one(self, batch: list[_Pending], error: Exception) -> None:
        """What fails as one: carry out each write by itself, so that only the one at fault is refused."""
        if len(batch) == 1:
            _refuse([(batch[0], error)])
            return
        for pending in batch:
            try:
                await self._apply([pending])
            except (ApiError, StreamRefusedError) as alone:
                _refuse([(pending, alone)])


def _fold(view: View, batch: Sequence[_Pending]) -> _Fold:
    """What the batch makes of the view's content."""
    held, version = view.content, view.version
    pieces: list[str] = []
    replaces = False
    accepted: list[_Pending] = []
    refused: list[tuple[_Pending, Exception]] = []
    for pending in batch:
        write = pending[0]
        try:
            if write.expected_version not in (None, version):
                raise StreamRefusedError(
                    "conflict",
                    f"The stream is at version {version}, expected_version is {write.expected_version}. "
                    "Read the stream and decide anew.",
                    version,
                )
            held = write.more if write.replaces else content.append(held, write.more)
        except (ContentError, StreamRefusedError) as error:
            refused.append((pending, error))
            continue
        version += 1
        replaces = replaces or write.replaces
        if write.replaces:
            pieces = []
        pieces += content.pieces_of(write.more)
        accepted.append(pending)
    return _Fold(held, pieces, replaces, accepted, refused)


def _refuse(refused: Sequence[tuple[_Pending, Exception]]) -> None:
    for (_, future), error in refused:
        if not future.done():
            future.set_exception(error)
