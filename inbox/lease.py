"""A lease: what only one in the fleet may do, under a token that shuts out whoever held it before.

The lock answers "may two run at once?"; that it was done already is told by claims and the ledger, never by a lease.

What if the holder freezes? 1. It holds the lease and stops for longer than `ttl_s`. 2. From the moment at which the
row expires `hold` gives its transactions no row, so no new writer gets in. 3. Somebody else's `acquire` changes the
token, which stands in a unique key and so waits for the writers that were open. 4. The holder wakes up: its own clock
says that its time is over (`until_s` counts from before it asked, so it ends no later than the row does), and whatever
it still sends finds another token. What it does outside the database no lease can stop: that is the ledger's business.

What if the database's clock jumps? Ahead: the row expires early, and two may run at once until the former holder's
own time is over; what it writes is refused. Back: the row would be valid for as long as the jump, so an expiry that is
further away than `ttl_s` counts as none. Everybody who asks for one name must therefore ask with one `ttl_s`.

Each function is a transaction's first statements; none keeps anything in the session, so that a pooler in transaction
mode does no harm. Lease rows come behind fence and version rows in lock order 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, final

from sqlalchemy.ext.asyncio import AsyncConnection

from .clock import Clock
from .points import Writes
from .store import STORE_ERRORS, Store
from .tables import Tables

TTL_S: Final = 15.0
"""Longer than a failover of the database or a stop-the-world pause takes, shorter than anybody waits for a restart."""

RENEWALS: Final = 3
"""Renewals in the life of a lease: two may fail before it is lost."""


@final
@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that is ours. `until_s`: until then by our own monotonic clock, counted from before we asked."""

    name: str
    token: int
    until_s: float


async def acquire(
    conn: AsyncConnection, t: Tables, name: str, holder: str, *, ttl_s: float, asked_s: float
) -> Lease | None:
    """A transaction of its own: the lease, under a token that nobody ever had, or None while another one holds it.

    `asked_s` is the monotonic time from before the transaction began. Waits for transactions of the former holder that
    are still open, at most as long as `lock_timeout`. A holder that asks again is like anybody: `renew` is for it.
    """
    # Both keys decide on the conflict: with one of them as its target, two who come first deadlock at the other.
    await conn.execute(
        t.sql("""
            INSERT INTO {lease} (name, holder, expires_at) VALUES (:name, :holder, '-infinity') ON CONFLICT DO NOTHING
        """),
        {"name": name, "holder": holder},
    )
    # Not by an upsert: that would lock a lease that is held, and wait for its holder's writers, only to leave it alone.
    token: int | None = await conn.scalar(
        t.sql("""
            UPDATE {lease} SET token = token + 1, holder = :holder,
                   expires_at = clock_timestamp() + make_interval(secs => :ttl_s)
             WHERE name = :name AND (expires_at <= clock_timestamp()
                                     OR expires_at > clock_timestamp() + make_interval(secs => :ttl_s))
            RETURNING token
        """),
        {"name": name, "holder": holder, "ttl_s": ttl_s},
    )
    return None if token is None else Lease(name, token, asked_s + ttl_s)


async def renew(conn: AsyncConnection, t: Tables, lease: Lease, *, ttl_s: float, asked_s: float) -> Lease | None:
    """A transaction of its own: the same token for longer. None: it ran out, and is to be acquired like any other.

    Touches no column of a key, so it never waits for our own writers.
    """
    token: int | None = await conn.scalar(
        t.sql("""
            UPDATE {lease} SET expires_at = clock_timestamp() + make_interval(secs => :ttl_s)
             WHERE name = :name AND token = :token AND expires_at > clock_timestamp() RETURNING token
        """),
        {"name": lease.name, "token": lease.token, "ttl_s": ttl_s},
    )
    return None if token is None else replace(lease, until_s=asked_s + ttl_s)


async def release(conn: AsyncConnection, t: Tables, lease: Lease) -> None:
    """A transaction of its own, at a clean end: whoever asks next gets it at once. Nothing, where it is not ours."""
    await conn.execute(
        t.sql("""
            UPDATE {lease} SET expires_at = '-infinity' WHERE name = :name AND token = :token
        """),
        {"name": lease.name, "token": lease.token},
    )


async def hold(conn: AsyncConnection, t: Tables, lease: Lease) -> bool:
    """Lock order 1, in every transaction that writes under the lease: until it ends no other token is handed out.

    False: it is not ours any more, and nothing may be written.
    """
    held = await conn.scalar(
        t.sql("""
            SELECT token FROM {lease}
             WHERE name = :name AND token = :token AND expires_at > clock_timestamp() FOR KEY SHARE
        """),
        {"name": lease.name, "token": lease.token},
    )
    return held is not None


@final
class Leaseholder:
    """Asks for one lease, renews it in time, gives it up: for a loop that asks `held` before each of its rounds."""

    def __init__(self, store: Store, clock: Clock, name: str, holder: str, *, ttl_s: float = TTL_S) -> None:
        self._store = store
        self._clock = clock
        self._name = name
        self._holder = holder
        self._ttl_s = ttl_s
        self._lease: Lease | None = None

    async def held(self) -> Lease | None:
        """The lease where it is ours for now, acquired or renewed as needed; None while it is somebody else's."""
        now_s = self._clock.monotonic_s()
        if self.left_s() < self._ttl_s * (1 - 1 / RENEWALS):
            self._lease = await self._ask(now_s)
        return self._lease

    @property
    def lease(self) -> Lease | None:
        """The lease as far as it surely is ours now; nobody is asked."""
        return self._lease if self.left_s() > 0 else None

    def left_s(self) -> float:
        """Seconds for which it surely is ours; never more than what is left, -inf without one."""
        return -math.inf if self._lease is None else self._lease.until_s - self._clock.monotonic_s()

    async def give_up(self) -> None:
        """At a clean end. Where the database does not answer, it runs out by itself."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        try:
            async with self._store.transaction(Writes.LEASE) as conn:
                await release(conn, self._store.tables, lease)
        except STORE_ERRORS:
            return

    async def _ask(self, now_s: float) -> Lease | None:
        t = self._store.tables
        if self._lease is not None and self._lease.until_s > now_s:
            async with self._store.transaction(Writes.LEASE) as conn:
                renewed = await renew(conn, t, self._lease, ttl_s=self._ttl_s, asked_s=now_s)
            if renewed is not None:
                return renewed
        async with self._store.transaction(Writes.LEASE) as conn:
            return await acquire(conn, t, self._name, self._holder, ttl_s=self._ttl_s, asked_s=now_s)
