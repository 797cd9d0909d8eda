"""Connections kept in hand: one for all stores of a pool, never more than half, none while somebody waits."""

import asyncio

import asyncpg
import pytest

from storage.lending import Lending, lending_of
from tests.conftest import STATEMENTS_KEPT


@pytest.fixture
def lending(pool: "asyncpg.Pool[asyncpg.Record]") -> Lending:
    return lending_of(pool)


async def held(pool: "asyncpg.Pool[asyncpg.Record]") -> int:
    """Return how many connections the pool has lent."""
    return pool.get_size() - pool.get_idle_size()


async def test_all_stores_of_a_pool_share_what_is_kept(pool: "asyncpg.Pool[asyncpg.Record]") -> None:
    """Two would keep half of the pool each, and whoever acquires beside them would wait."""
    first, again = lending_of(pool), lending_of(pool)
    assert first is again


@pytest.mark.own_session("asks which session it is in")
async def test_a_connection_is_kept_for_the_next_and_given_back_when_nobody_comes(
    pool: "asyncpg.Pool[asyncpg.Record]", lending: Lending
) -> None:
    """The second statement runs on the first one's connection; a moment later the pool has it back."""
    pids = [await lending.fetchval("select pg_backend_pid()") for _ in range(3)]
    assert len(set(pids)) == 1
    assert await held(pool) == 1
    while await held(pool):
        await asyncio.sleep(0.01)


async def test_a_crowd_gets_every_connection_and_half_of_them_stay_free_for_others(
    pool: "asyncpg.Pool[asyncpg.Record]", lending: Lending
) -> None:
    """Far more borrowers than connections all come by; afterwards at most half of the pool is kept."""
    answers = await asyncio.gather(*(lending.fetchval("select $1::int", n) for n in range(200)))
    assert answers == list(range(200))
    assert await held(pool) <= pool.get_max_size() // 2


async def test_a_cut_connection_is_not_lent_again(pool: "asyncpg.Pool[asyncpg.Record]", lending: Lending) -> None:
    """The server ends the kept one: at most one borrower notices, the next gets another."""
    pid = await lending.fetchval("select pg_backend_pid()")
    async with pool.acquire() as other:
        assert await other.fetchval("select pg_terminate_backend($1, 60000)", pid)
    found = None
    for _ in range(2):
        try:
            found = await lending.fetchval("select pg_backend_pid()")
            break
        except (asyncpg.PostgresConnectionError, asyncpg.AdminShutdownError):
            continue
    assert found not in (None, pid)


async def test_what_failed_goes_back_to_the_pool_and_holds_no_transaction(
    pool: "asyncpg.Pool[asyncpg.Record]", lending: Lending
) -> None:
    """An error inside a transaction, then a borrower: it is in none."""
    with pytest.raises(asyncpg.DivisionByZeroError):
        async with lending.connection() as connection, connection.transaction():
            await connection.fetchval("select 1 / 0")
    assert await held(pool) == 0
    async with lending.connection() as connection:
        assert not connection.is_in_transaction()


async def test_a_small_pool_has_none_to_spare(database: str) -> None:
    """With three connections everything goes back at once."""
    async with asyncpg.create_pool(database, min_size=1, max_size=3, statement_cache_size=STATEMENTS_KEPT) as small:
        assert await lending_of(small).fetchval("select 1") == 1
        assert await held(small) == 0
