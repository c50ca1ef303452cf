"""The host tier's slots, by block hash: least recently used goes first, what a step uses stays."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stream2llm.hostpool import HostPool

A, B, C, D = (bytes([letter]) for letter in b"ABCD")


def stored(pool: HostPool, *block_hashes: bytes) -> list[int | None]:
    slots = [pool.store(block_hash) for block_hash in block_hashes]
    pool.settle()
    return slots


def test_blocks_stored_together_get_ascending_slots() -> None:
    assert stored(HostPool(4), A, B, C) == [0, 1, 2]


def test_a_prefix_ends_at_the_first_block_that_is_not_held() -> None:
    pool = HostPool(4)
    stored(pool, A, B, D)
    assert pool.prefix([A, B, C, D]) == 2
    assert pool.prefix([C, A]) == 0
    assert pool.prefix([]) == 0


def test_a_full_pool_evicts_the_prefix_used_longest_ago_tail_first() -> None:
    pool = HostPool(3)
    stored(pool, A, B)
    stored(pool, C)
    assert stored(pool, D) == [1]
    assert (A in pool, B in pool, C in pool, D in pool) == (True, False, True, True)
    assert pool.evicted == 1


def test_what_was_touched_outlives_what_was_not() -> None:
    pool = HostPool(2)
    stored(pool, A)
    stored(pool, B)
    assert pool.touch(A) == 0
    pool.settle()
    stored(pool, C)
    assert (A in pool, B in pool) == (True, False)


def test_a_block_that_the_step_uses_is_not_evicted_in_it() -> None:
    pool = HostPool(2)
    stored(pool, A, B)
    pool.touch(A)
    assert pool.store(C) == 1
    assert pool.store(D) is None, "A is being loaded and C is being written"
    assert A in pool
    assert pool.evicted == 1
    pool.settle()
    assert stored(pool, D) == [1]


def test_a_step_that_stores_more_than_fits_keeps_the_head() -> None:
    pool = HostPool(2)
    assert stored(pool, A, B, C) == [0, 1, None]
    assert pool.prefix([A, B, C]) == 2


def test_storing_twice_is_an_error_and_so_is_touching_what_is_not_held() -> None:
    pool = HostPool(2)
    pool.store(A)
    with pytest.raises(ValueError, match="held already"):
        pool.store(A)
    with pytest.raises(KeyError):
        pool.touch(B)


def test_a_cleared_pool_is_as_new() -> None:
    pool = HostPool(2)
    stored(pool, A, B)
    pool.clear()
    assert len(pool) == 0
    assert stored(pool, C, D) == [0, 1]


def test_a_pool_without_slots_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        HostPool(0)


class Histories(RuleBasedStateMachine):
    """Random histories against a list of (hash, slot) pairs in order of last use."""

    @initialize(capacity=st.integers(1, 6))
    def start(self, capacity: int) -> None:
        self.pool = HostPool(capacity)
        self.idle: list[bytes] = []
        self.busy: list[bytes] = []
        self.slots: dict[bytes, int] = {}

    @rule(block_hash=st.integers(0, 9).map(lambda number: bytes([number])))
    def use(self, block_hash: bytes) -> None:
        if block_hash in self.slots:
            assert self.pool.touch(block_hash) == self.slots[block_hash]
            if block_hash in self.idle:
                self.idle.remove(block_hash)
                self.busy.append(block_hash)
            return
        slot = self.pool.store(block_hash)
        if len(self.busy) == self.pool.capacity:
            assert slot is None
            return
        if len(self.slots) == self.pool.capacity:
            assert slot == self.slots.pop(self.idle.pop(0))
        assert slot is not None
        assert slot not in self.slots.values()
        self.slots[block_hash] = slot
        self.busy.append(block_hash)

    @precondition(lambda self: self.busy)
    @rule()
    def settle(self) -> None:
        self.pool.settle()
        self.idle += reversed(self.busy)
        self.busy = []

    @invariant()
    def holds_the_same(self) -> None:
        assert len(self.pool) == len(self.slots) <= self.pool.capacity
        assert all(block_hash in self.pool for block_hash in self.slots)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
