"""A training that is moved again and again, mid-cell, computes what it computes undisturbed."""

from __future__ import annotations

import asyncio

import pytest
from support.agent_gpt import migrated, uninterrupted
from support.capsules import needs_criu
from support.matrix import is_full, seed

pytestmark = needs_criu

STEPS, MIGRATIONS = (40, 5) if is_full() else (16, 2)


@pytest.mark.timeout(300)
@pytest.mark.asyncio
async def test_a_gpt_across_migrations_is_bitwise_equal() -> None:
    found = await migrated(STEPS, MIGRATIONS, seed())
    plain = await asyncio.to_thread(uninterrupted, len(found))
    assert [n for n, _ in plain] == list(range(len(found)))
    assert found == plain
