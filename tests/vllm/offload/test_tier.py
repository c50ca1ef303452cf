"""The scheduler's side, on vLLM's own block pool and requests, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from stream2llm.vllm.offload.copies import BlockCopy, StepCopies
from stream2llm.vllm.offload.tier import HostTier

BLOCK = 4


@pytest.fixture(autouse=True)
def hashing() -> None:
    init_none_hash(sha256)


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(num_gpu_blocks=20, enable_caching=True, hash_block_size=BLOCK)


def request(tokens: Sequence[int], salt: str | None = None) -> Request:
    return Request(
        request_id=f"request {len(tokens)}",
        prompt_token_ids=list(tokens),
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        cache_salt=salt,
        block_hasher=get_request_block_hasher(BLOCK, sha256),
    )


def computed(pool: BlockPool, owner: Request) -> list[Any]:
    """Blocks for all tokens of the request, the full ones cached."""
    full = owner.num_tokens // BLOCK
    blocks = pool.get_new_blocks(-(-owner.num_tokens // BLOCK))
    pool.cache_full_blocks(owner, blocks, 0, full, BLOCK, 0)
    return blocks


def test_full_blocks_are_copied_out_once_and_found_by_any_request_with_the_prefix(pool: BlockPool) -> None:
    tier = HostTier(8, BLOCK)
    blocks = computed(pool, request(range(10)))

    assert tier.offload([pool.null_block, *blocks]) == 2, "not the null block, not the partial one"
    assert tier.offload(blocks) == 2

    assert tier.take_copies().out == (BlockCopy(blocks[0].block_id, 0), BlockCopy(blocks[1].block_id, 1))
    assert tier.take_copies() == StepCopies()
    assert tier.held_tokens(request([*range(8), 99, 98]), 0) == 8
    assert tier.held_tokens(request([*range(4), 99, 98, 97, 96, 95]), 0) == 4
    assert tier.held_tokens(request(range(10), salt="another tenant"), 0) == 0


@pytest.mark.parametrize(
    ("tokens", "local", "held"), [(8, 0, 4), (9, 0, 8), (9, 4, 4), (9, 8, 0), (20, 8, 4), (3, 0, 0)]
)
def test_the_last_token_is_always_left_to_compute(pool: BlockPool, tokens: int, local: int, held: int) -> None:
    tier = HostTier(8, BLOCK)
    tier.offload(computed(pool, request(range(12))))
    assert tier.held_tokens(request(range(tokens)), local) == held


def test_what_was_matched_after_the_local_hit_is_loaded_into_the_blocks_behind_it(pool: BlockPool) -> None:
    tier = HostTier(8, BLOCK)
    tier.offload(computed(pool, request(range(16))))
    tier.take_copies()
    later = request(range(18))

    assert tier.match(later, BLOCK) == 3 * BLOCK
    tier.load(later, [11, 12, 13, 14, 15], 3 * BLOCK)

    assert tier.take_copies().back == (BlockCopy(12, 1), BlockCopy(13, 2), BlockCopy(14, 3))
    statistics = tier.statistics()
    assert (statistics.copied_out, statistics.copied_back, statistics.held_blocks) == (4, 3, 4)


def test_nothing_is_loaded_if_the_scheduler_takes_another_connectors_tokens(pool: BlockPool) -> None:
    tier = HostTier(8, BLOCK)
    tier.offload(computed(pool, request(range(8))))
    tier.take_copies()
    later = request(range(9))
    assert tier.match(later, 0) == 8
    tier.load(later, [1, 2, 3], 0)
    assert tier.take_copies() == StepCopies()


def test_a_slot_that_the_step_loads_is_not_given_away_in_it(pool: BlockPool) -> None:
    tier = HostTier(2, BLOCK)
    tier.offload(computed(pool, request(range(8))))
    tier.take_copies()
    later = request(range(9))
    tier.match(later, 0)
    tier.load(later, [1, 2, 3], 8)

    assert tier.offload(computed(pool, request(range(50, 58)))) == 0
    assert tier.statistics().refused == 2
    assert tier.take_copies() == StepCopies(back=(BlockCopy(1, 0), BlockCopy(2, 1)))
    assert tier.offload(computed(pool, request(range(70, 78)))) == 2
    assert tier.statistics().evicted == 2


def test_a_reset_forgets_blocks_and_copies_that_were_planned(pool: BlockPool) -> None:
    tier = HostTier(8, BLOCK)
    tier.offload(computed(pool, request(range(8))))
    tier.reset()
    assert tier.take_copies() == StepCopies()
    assert tier.match(request(range(9)), 0) == 0
    assert tier.statistics().held_blocks == 0
