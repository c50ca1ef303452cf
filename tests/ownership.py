"""Who owns which KV block: what must hold of the real scheduler and block pool between any two steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stepping import Engine


@dataclass(frozen=True, slots=True)
class _Holding:
    """A reference to a block, which its owner takes to hold the KV of the owner's tokens up to `end`."""

    group: int
    end: int
    block: Any


@dataclass(frozen=True, slots=True)
class _Owner:
    name: str
    holdings: Sequence[_Holding]
    hashes: Sequence[bytes]  # of the owner's full blocks, from nothing but its tokens


def check_invariants(engine: Engine, foreign: Sequence[Any] = ()) -> None:
    """Raise `AssertionError` if a KV block is lost, has a wrong number of owners, or is not what one takes it for.

    To be called between two steps. `foreign` are blocks that the test itself has taken from the pool.
    """
    owners = [*_requests(engine), *_streams(engine), *_kept(engine)]
    references = Counter(holding.block.block_id for owner in owners for holding in owner.holdings)
    references.update(block.block_id for block in (*_fenced(engine), *foreign))
    _check_references(engine, owners, references)
    _check_free_queue(engine)
    _check_contents(engine, owners, references)
    _check_prefix_cache(engine)
    _check_live_versions(engine)


def _check_references(engine: Engine, owners: Sequence[_Owner], references: Counter[int]) -> None:
    for block in _pool(engine).blocks:
        number = block.block_id
        if not block.is_null and block.ref_cnt != references[number]:
            names = [owner.name for owner in owners for holding in owner.holdings if holding.block is block]
            raise AssertionError(f"block {number}: ref_cnt {block.ref_cnt}, {references[number]} owners, {names}")


def _check_free_queue(engine: Engine) -> None:
    pool = _pool(engine)
    queued = sorted(block.block_id for block in pool.free_block_queue.get_all_free_blocks())
    assert queued == [block.block_id for block in pool.blocks if block.ref_cnt == 0 and not block.is_null]
    assert pool.get_num_free_blocks() == len(queued)


def _check_contents(engine: Engine, owners: Sequence[_Owner], references: Counter[int]) -> None:
    """A block's hash is that of its owner's tokens, for every owner, so owners agree on its content. A block without
    a hash, whose content nobody can ask for, has one owner."""
    from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

    for owner in owners:
        for holding in owner.holdings:
            block = holding.block
            if block.block_hash is None:
                assert references[block.block_id] == 1, f"{owner.name} shares block {block.block_id}, which has no hash"
                continue
            index = holding.end // engine.scheduler.hash_block_size - 1
            assert index < len(owner.hashes), f"{owner.name} has too few tokens for block {block.block_id} at {index}"
            expected = make_block_hash_with_group_id(owner.hashes[index], holding.group)
            assert block.block_hash == expected, f"{owner.name}: block {block.block_id} at {index} is not its own"


def _check_prefix_cache(engine: Engine) -> None:
    """What a look-up finds is what the blocks say of themselves."""
    pool = _pool(engine)
    findable = {
        (key, block.block_id)
        for key, found in pool.cached_block_hash_to_block._cache.items()
        for block in (found.values() if isinstance(found, dict) else [found])
    }
    assert findable == {(block.block_hash, block.block_id) for block in pool.blocks if block.block_hash is not None}


def _check_live_versions(engine: Engine) -> None:
    scheduler = engine.scheduler
    for stream in scheduler.streams:
        live = stream.live
        if live is not None:
            assert scheduler.requests.get(live.request_id) is live
            assert scheduler.streams.owner(live) is stream
            assert live.prompt_token_ids == list(stream.state.tokens[: live.num_prompt_tokens])


def _pool(engine: Engine) -> Any:
    return engine.scheduler.kv_cache_manager.block_pool


def _requests(engine: Engine) -> Iterator[_Owner]:
    """The owners by block table. A table whose request is gone would never be freed."""
    tables: dict[str, list[_Holding]] = {}
    for group, manager in enumerate(engine.scheduler.kv_cache_manager.coordinator.single_type_managers):
        for request_id, blocks in manager.req_to_blocks.items():
            tables.setdefault(request_id, []).extend(
                _Holding(group, (index + 1) * manager.block_size, block)
                for index, block in enumerate(blocks)
                if not block.is_null
            )
    for request_id, holdings in tables.items():
        if holdings:
            request = engine.scheduler.requests.get(request_id)
            assert request is not None, f"{request_id} is gone and has {len(holdings)} blocks"
            yield _Owner(request_id, holdings, _hashes(engine, request.all_token_ids, request))


def _streams(engine: Engine) -> Iterator[_Owner]:
    """The owners by pins: open streams, and those whose final request has yet to adopt them."""
    streams = engine.scheduler.streams
    for stream in [*streams, *streams.finals()]:
        holdings = [_Holding(pin.group, pin.end, pin.block) for pin in stream.pins._pins]
        assert all(holding.block.block_hash is not None for holding in holdings), "a pin on a partial block"
        final = stream.final
        hashes = _hashes(engine, stream.state.tokens, stream.template)
        yield _Owner(f"pins of {stream.state.id}", holdings, hashes)
        if final is not None:
            usable = _hashes(engine, final.all_token_ids, final)[: len(holdings)]
            assert usable == hashes[: len(holdings)], "pins that the final request cannot use"


def _kept(engine: Engine) -> Iterator[_Owner]:
    """The owners by pins: complete requests that a plan has preempted."""
    for request_id, pins in engine.scheduler._kept.items():
        request = engine.scheduler.requests[request_id]
        holdings = [_Holding(pin.group, pin.end, pin.block) for pin in pins._pins]
        yield _Owner(f"kept for {request_id}", holdings, _hashes(engine, request.all_token_ids, request))


def _fenced(engine: Engine) -> list[Any]:
    """Blocks whose owner is gone, and which a step under way may still write (vLLM's deferred frees)."""
    return [block for _, blocks in engine.scheduler.deferred_frees for block in blocks]


def _hashes(engine: Engine, tokens: Sequence[int], like: Any) -> Sequence[bytes]:
    """The block hashes of `tokens` under the LoRA adapter and the cache salt of `like`."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    request = Request(
        request_id="check",
        prompt_token_ids=list(tokens),
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        lora_request=like.lora_request,
        cache_salt=like.cache_salt,
        block_hasher=engine.core.request_block_hasher,
    )
    return request.block_hashes
