"""After an unclean end records are handled one at a time, for a bounded while; a mark that is found has a meaning."""

from __future__ import annotations

from typing import Any

import pytest

from tests.services.topics import Topic
from tests.support.desk import Desk, Do, at_desk, letters
from tests.support.running import Sent, Stage, note, reader, table_of
from tidegate.consumers import App, Context
from tidegate.consumers.worker import suspects

UNCLEAN = "UPDATE tidegate.fence SET released_at = NULL, crashes = 1, crash_point = 0"
"""As if the owner had died for the second time, having done nothing."""

ONCE = "UPDATE tidegate.fence SET released_at = NULL, crashes = 0"
"""As if it had died for the first time."""


async def dead_owner(stage: Stage, app: App, died: str = UNCLEAN) -> None:
    """The consumer was there before: its partitions stand at their beginnings, and nobody has released them."""
    worker = await stage.ready(app)
    await worker.until(lambda: worker.metrics.value("fence_takeovers", "taken") == 4)
    await worker.stop()
    await stage.execute(died)


async def marked(stage: Stage, consumer: str, topic: str, offset: int, deaths: int) -> None:
    """A mark on partition 0, which stood at so many unclean ends before."""
    await stage.execute(
        "INSERT INTO tidegate.suspect (consumer, topic, partition, record_offset, deaths)"
        f" VALUES ('{consumer}', '{topic}', 0, {offset}, {deaths})"
    )


async def test_suspects_are_handled_one_at_a_time_each_under_its_mark_and_then_life_goes_on(
    stage: Stage, topic: Topic
) -> None:
    """Of all partitions: whatever else this process might have in its hands stands back.

    Case: B34
    Parts: real (Kafka, PostgreSQL)
    Red when: suspects.py `examine` leaves `self._solo.alone()` out
    """
    name = topic()
    app = reader(name)
    (consumer,) = app.consumers.values()
    await table_of(stage)
    seen: list[tuple[str, Any]] = []

    async def look(command: Do, ctx: Context) -> None:
        mark = await stage.value("SELECT partition || '@' || record_offset FROM tidegate.suspect")
        seen.append((f"{ctx.event.record.partition}@{ctx.event.offset}", mark))

    desk = at_desk(app, look)
    consumer.projection("noted")(note)
    await dead_owner(stage, app)
    first = [Sent(f"{n}-{partition}", key=b"%d" % n, partition=partition) for n in range(4) for partition in range(3)]
    await stage.send(name, *first)
    worker = await stage.start(app)
    await worker.until(lambda: worker.events("do", "completed") == worker.events("noted", "completed") == 12)
    assert desk.most == 1
    assert [mark for _, mark in seen] == [place for place, _ in seen]
    await stage.send(name, Sent("x", key=b"x", partition=0), Sent("y", key=b"y", partition=3))
    await worker.until(lambda: worker.events("do", "completed") == 14)
    assert await stage.failures() == []
    assert await stage.value("SELECT count(*) FROM tidegate.suspect") == 0


async def test_a_stop_while_a_suspect_is_in_hand_makes_no_letter(stage: Stage, topic: Topic) -> None:
    """SIGTERM is no death, however long the handler would have gone on: its record is handled by the next process.

    Case: B34
    Parts: real (Kafka, PostgreSQL)
    Red when: run.py `_take_apart` leaves `fence.release` out
    """
    name = topic()
    app = reader(name)
    desk = at_desk(app)
    await dead_owner(stage, app)
    desk.shut("a")
    await stage.send(name, Sent("a"), Sent("b"))
    worker = await stage.start(app, variables={"TIDEGATE_WORKER_DRAIN_BUDGET_S": "0.3"})
    await worker.until(lambda: desk.came == ["a"])
    await worker.stop()
    assert await stage.value("SELECT record_offset FROM tidegate.suspect") == 0
    desk.open("a")
    worker = await stage.start(app)
    await worker.until(lambda: worker.events("do", "completed") == 2)
    assert await stage.failures() == []
    assert await stage.value("SELECT count(*) FROM tidegate.suspect") == 0


async def killed_at(stage: Stage, topic: Topic, deaths: int) -> tuple[App, Desk]:
    """An owner died with the record at 1 as the only one in its hands, as `deaths` had before; that at 0 was done."""
    name = topic()
    app = reader(name)
    letters(app, topic)
    desk = at_desk(app)
    await dead_owner(stage, app)
    await stage.send(name, Sent("a"), Sent("b"), Sent("c"))
    await stage.execute("UPDATE tidegate.checkpoint SET next_offset = 1 WHERE partition = 0")
    await marked(stage, next(iter(app.consumers)), name, 1, deaths)
    return app, desk


async def test_whose_mark_is_found_is_given_up_without_another_look(stage: Stage, topic: Topic) -> None:
    """Nothing decodes it and nobody handles it; what stands behind it goes on, and the unclean ends have their reason.

    Case: B34
    Parts: real (Kafka, PostgreSQL)
    Red when: killed.py `_pass` moves no checkpoint
    """
    app, desk = await killed_at(stage, topic, 1)
    worker = await stage.start(app)
    await worker.until(lambda: worker.events("do", "completed") == 1)
    assert desk.came == ["c"]
    (topic_name,) = next(iter(app.consumers.values())).topics
    assert await stage.failures() == [(f"{topic_name}/0@1", "dead", "killed_process")]
    assert await stage.value("SELECT crashes FROM tidegate.fence WHERE partition = 0") == 0
    letter = (await stage.read(f"{topic_name}.{next(iter(app.consumers))}.dlq", 1))[0]
    assert (letter.value, letter.header("tidegate-reason")) == (b"{}", b"killed_process")


async def test_one_death_alone_is_no_proof_and_the_second_one_is(stage: Stage, topic: Topic) -> None:
    """Whatever ends a process ends it with some record in hand; the same one twice is no chance.

    Case: B34
    Parts: real (Kafka, PostgreSQL)
    Red when: killed.py reads `DEATHS_ALONE = 1`, or counts nothing
    """
    app, desk = await killed_at(stage, topic, 0)
    desk.shut("b")
    worker = await stage.start(app, variables={"TIDEGATE_WORKER_DRAIN_BUDGET_S": "0.3"})
    await worker.until(lambda: desk.came == ["b"])
    assert await stage.value("SELECT deaths FROM tidegate.suspect") == 1
    await worker.stop()
    await stage.execute("UPDATE tidegate.fence SET released_at = NULL, crashes = 1, crash_point = 1")
    worker = await stage.start(app)
    await worker.until(lambda: worker.events("do", "completed") == 1)
    assert desk.came == ["b", "c"]
    assert [row[2] for row in await stage.failures()] == ["killed_process"]


async def test_where_deaths_were_chance_two_of_them_alone_are_not_enough(stage: Stage, topic: Topic) -> None:
    """A record that was in a dead owner's hands is handled unharmed; a second one after it takes a death more.

    Case: B34
    Parts: real (Kafka, PostgreSQL)
    Red when: suspects.py `_unharmed` writes nothing down; killed.py reads `DEATHS_AMID_CHANCE = 2`
    """
    app, desk = await killed_at(stage, topic, 0)
    worker = await stage.start(app)
    await worker.until(lambda: worker.events("do", "completed") == 2)
    assert desk.came == ["b", "c"]
    await worker.stop()
    assert await stage.value("SELECT count(*) FROM tidegate.fence WHERE innocent_at IS NOT NULL") == 1
    ((consumer, declared),) = app.consumers.items()
    await stage.send(declared.topics[0], Sent("d"))
    await marked(stage, consumer, declared.topics[0], 3, 1)
    await stage.execute("UPDATE tidegate.fence SET released_at = NULL, crashes = 1, crash_point = 3")
    worker = await stage.start(app)
    await worker.until(lambda: worker.events("do", "completed") == 1)
    assert desk.came == ["b", "c", "d"]
    assert await stage.failures() == []


async def test_a_mark_on_what_was_done_before_the_death_counts_for_nothing(stage: Stage, topic: Topic) -> None:
    """Between a record's end and the next one's mark nobody has it in hand.

    Case: B34
    Parts: real (Kafka, PostgreSQL)
    Red when: killed.py does not ask `_is_done`
    """
    app, desk = await killed_at(stage, topic, 1)
    await stage.execute("UPDATE tidegate.checkpoint SET next_offset = 2 WHERE partition = 0")
    worker = await stage.start(app)
    await worker.until(lambda: worker.events("do", "completed") == 1)
    assert desk.came == ["c"]
    assert await stage.failures() == []


async def test_what_a_backfill_holds_has_no_say_in_whether_a_record_was_done(stage: Stage, topic: Topic) -> None:
    """A held checkpoint stands still for as long as the backfill takes: nothing would ever be behind it.

    Case: B34
    Parts: real (Kafka, PostgreSQL)
    Red when: killed.py `_is_done` asks the checkpoints that are held, too
    """
    name = topic()
    app = reader(name)
    (consumer,) = app.consumers.values()
    letters(app, topic)
    desk = at_desk(app)
    consumer.projection("noted")(note)
    await table_of(stage)
    await dead_owner(stage, app)
    await stage.send(name, Sent("a"), Sent("b"), Sent("c"))
    await stage.execute(
        "UPDATE tidegate.checkpoint c SET next_offset = 2 FROM tidegate.handler h"
        " WHERE h.id = c.handler AND h.name = 'do' AND c.partition = 0",
        "UPDATE tidegate.checkpoint c SET held = 1, detached = true FROM tidegate.handler h"
        " WHERE h.id = c.handler AND h.name = 'noted'",
    )
    await marked(stage, consumer.name, name, 1, 1)
    worker = await stage.start(app)
    await worker.until(lambda: worker.events("do", "completed") == 1)
    assert desk.came == ["c"]
    assert await stage.failures() == []
    assert await stage.value("SELECT count(*) FROM tidegate.fence WHERE innocent_at IS NOT NULL") == 1


async def test_who_dies_before_it_comes_to_the_suspect_says_nothing_of_it(stage: Stage, topic: Topic) -> None:
    """A mark that an earlier owner left, and that the last one had not touched yet, is no death of this record.

    Case: B34
    Parts: real (Kafka, PostgreSQL)
    Red when: killed.py does not ask whether the mark was `in_hand`
    """
    app, desk = await killed_at(stage, topic, 1)
    await stage.execute("UPDATE tidegate.suspect SET in_hand = false")
    worker = await stage.start(app)
    await worker.until(lambda: worker.events("do", "completed") == 2)
    assert desk.came == ["b", "c"]
    assert await stage.failures() == []


async def test_a_partition_with_nothing_unread_is_no_place_of_deaths(stage: Stage, topic: Topic) -> None:
    """What comes into it after two unclean ends elsewhere is no suspect.

    Case: B34
    Parts: real (Kafka, PostgreSQL)
    Red when: ownership.py does not say `nothing_unread`
    """
    name = topic()
    app = reader(name)
    letters(app, topic)
    at_desk(app)
    await dead_owner(stage, app)
    worker = await stage.ready(app)
    await worker.until(lambda: worker.metrics.value("fence_takeovers", "taken") == 4)
    assert await stage.rows("SELECT DISTINCT crashes FROM tidegate.fence WHERE released_at IS NULL") == [(0,)]


async def test_memory_that_is_refused_is_an_error_like_others(stage: Stage, topic: Topic) -> None:
    """Where Python says no, nobody dies: it is tried again, and given up as exhausted."""
    name = topic()
    app = reader(name)
    letters(app, topic)

    async def too_much(command: Do, ctx: Context) -> None:
        if command.id == "a":
            bytearray(1 << 62)

    at_desk(app, too_much)
    worker = await stage.ready(app)
    await stage.send(name, Sent("a", key=b"a"), Sent("b", key=b"b"))
    await worker.until(lambda: worker.events("do", "completed") == 1 and worker.metrics.value("retries", "do") >= 1)
    assert await stage.value("SELECT count(*) FROM tidegate.failure WHERE reason = 'killed_process'") == 0


async def test_one_unclean_end_begins_a_look_that_ends_after_so_many_records(
    stage: Stage, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most ends have nothing to do with any record: the first ones are handled alone, the others together.

    How far it was looked is where the next owner that dies has died, or a search that takes several would not end.

    Case: B34
    Parts: real (Kafka, PostgreSQL)
    Red when: ownership.py reads `SUSPECTED_FROM = 2`; suspects.py `_one_by_one` forgets the bound's `records_max`
    """
    monkeypatch.setattr(suspects, "FIRST_RECORDS_MAX", 3)
    name = topic()
    app = reader(name)
    desk = at_desk(app)
    await dead_owner(stage, app, ONCE)
    ids = [str(n) for n in range(6)]
    desk.shut(*ids[3:])
    await stage.send(name, *[Sent(id_, key=id_.encode()) for id_ in ids])
    worker = await stage.start(app)
    await worker.until(lambda: len(desk.inside) == 3)
    assert desk.went == ids[:3]
    fence = "SELECT crashes, crash_point FROM tidegate.fence WHERE partition = 0"
    assert await stage.rows(fence) == [(1, 3)]
    assert await stage.value("SELECT count(*) FROM tidegate.suspect WHERE in_hand") == 0
    await worker.kill()
    await stage.execute("UPDATE tidegate.fence SET released_at = NULL, crashes = 1 WHERE partition = 0")
    desk.came.clear()
    worker = await stage.start(app)
    await worker.until(lambda: desk.came == ["3"])
    assert await stage.rows(fence) == [(2, 3)]
    desk.open(*ids[3:])
    await worker.until(lambda: worker.events("do", "completed") == 3)
    assert await stage.failures() == []


async def test_a_suspect_that_takes_too_long_goes_on_in_company_and_that_is_no_death_of_its_own(
    stage: Stage, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything else goes on it is written down that it is not alone any more; what was counted stays counted.

    Case: B34
    Parts: real (Kafka, PostgreSQL)
    Red when: suspects.py `_one` waits without `asyncio.timeout`; `_give_over` leaves `suspects.let_go` out
    """
    monkeypatch.setattr(suspects, "LONG_S", 0.2)
    app, desk = await killed_at(stage, topic, 0)
    (name,) = next(iter(app.consumers.values())).topics
    desk.shut("b")
    worker = await stage.start(app)
    await worker.until(lambda: desk.inside == {"b"})
    await stage.send(name, Sent("d", key=b"d", partition=3))
    await worker.until(lambda: worker.events("do", "completed") == 1)
    assert (desk.came, desk.inside) == (["b", "d"], {"b"})
    mark = "SELECT record_offset, deaths, in_hand FROM tidegate.suspect"
    assert await stage.rows(mark) == [(1, 1, False)]
    desk.open("b")
    await worker.until(lambda: worker.events("do", "completed") == 3)
    assert await stage.failures() == []


async def test_a_row_that_cannot_be_alone_in_time_holds_up_nobody_and_is_tried_again(
    stage: Stage, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody's handler takes an hour: reading goes on meanwhile, and the row that has killed a process stays queued.

    Case: B34
    Parts: real (Kafka, PostgreSQL)
    Red when: solo.py `alone` waits without `asyncio.timeout`
    """
    monkeypatch.setattr(suspects, "LONG_S", 0.2)
    app, desk = await killed_at(stage, topic, 1)
    (name,) = next(iter(app.consumers.values())).topics
    worker = await stage.start(app)
    await worker.until(lambda: worker.events("do", "completed") == 1)
    desk.shut("hour")
    await stage.send(name, Sent("hour", key=b"h", partition=2))
    await worker.until(lambda: desk.inside == {"hour"})
    await stage.replay()
    await worker.until(lambda: worker.metrics.value("ownership_lost") >= 1)
    await stage.send(name, Sent("d", key=b"d", partition=3))
    await worker.until(lambda: worker.events("do", "completed") == 2)
    assert desk.came == ["c", "hour", "d"]
    desk.open("hour")
    await worker.until(lambda: "b" in desk.went)

    async def unmarked() -> bool:
        return await stage.value("SELECT count(*) FROM tidegate.suspect") == 0

    await worker.until(unmarked)
