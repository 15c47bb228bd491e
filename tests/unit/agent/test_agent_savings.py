"""The checkpoints of one session that are under way at a moment."""

from __future__ import annotations

import asyncio

import pytest
from singularity_scheduler.agent.store.savings import Savings


@pytest.mark.asyncio
async def test_later_ones_wait_for_earlier_ones_and_can_give_them_up() -> None:
    savings = Savings()
    first, second, third = savings.begin(), savings.begin(), savings.begin()
    a, b, c = first.__enter__(), second.__enter__(), third.__enter__()
    savings.give_up(before=b)
    assert [x.cancel.is_set() for x in (a, b, c)] == [True, False, False]
    waiting = asyncio.ensure_future(savings.settle(before=b))
    everything = asyncio.ensure_future(savings.settle())
    await asyncio.sleep(0)
    assert not waiting.done()
    third.__exit__(None, None, None)
    await asyncio.sleep(0)
    assert not waiting.done()
    first.__exit__(None, None, None)
    await asyncio.wait_for(waiting, 60)
    assert not everything.done()
    savings.give_up()
    assert b.cancel.is_set()
    assert not c.cancel.is_set()
    second.__exit__(None, None, None)
    await asyncio.wait_for(everything, 60)
    await savings.settle()
