"""The parts of a watched page: who gets which, and when."""

import asyncio
import threading

import pytest

from partywall.web.shown import POLL_S, Feed, Part, Shown
from tests.web.web_site import record


def parts(**texts):
    return {name: Part(text, lambda text=text: text) for name, text in texts.items()}


def test_only_parts_that_changed_since_a_version_are_sent_in_their_order():
    shown = Shown()
    shown.take(parts(status="a", row_0="x", row_1="y"))
    first = shown.version
    assert shown.after(0)[1] == {"status": "a", "row_0": "x", "row_1": "y"}
    shown.take(parts(status="a", row_0="x", row_1="z"))
    assert list(shown.after(first)[1]) == ["row_1"]
    second = shown.version
    shown.take(parts(status="a", row_0="x", row_1="z"))
    assert shown.version == second
    assert shown.after(second) == (second, {})


def test_versions_of_two_pages_are_never_equal():
    """A page that was dropped and made again must not take an old version for its own."""
    first, second = Shown(), Shown()
    first.take(parts(status="a"))
    second.take(parts(status="a"))
    assert second.version > first.version


class Journal:
    """A page whose content changes by hand. looks: how often it was looked at."""

    def __init__(self):
        self.shown, self.text, self.looks = Shown(), "0", 0

    def look(self):
        self.looks += 1
        if self.text == "broken":
            raise OSError("the disk is gone")
        self.shown.take(parts(figures=self.text))
        return self.shown


def watched(check):
    """Carries out a check while a journal is watched."""

    async def carry_out():
        journal = Journal()
        feed = Feed(journal.look, journal.look)
        with feed.watched():
            await check(journal, feed)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "it looks though nobody watches"

    asyncio.run(carry_out())


def test_one_feed_serves_all_that_watch_and_ends_with_the_last():
    async def check(journal, feed):
        with feed.watched():
            first, second = await asyncio.gather(feed.after(0, 5.0), feed.after(0, 5.0))
            assert first == second == (journal.shown.version, {"figures": "0"})
            journal.text = "1"
            both = await asyncio.gather(feed.after(first[0], 5.0), feed.after(first[0], 5.0))
            assert both == [(journal.shown.version, {"figures": "1"})] * 2
        version = journal.shown.version
        assert await feed.after(version, 3 * POLL_S) == (version, {})

    watched(check)


def test_a_change_is_sent_even_if_a_request_saw_it_first_or_nobody_waited_for_it():
    async def check(journal, feed):
        version, _ = await feed.after(0, 5.0)
        journal.text = "1"
        journal.look()
        version, parts = await feed.after(version, 5.0)
        assert parts == {"figures": "1"}
        journal.text = "2"
        assert (await feed.after(version, 5.0))[1] == {"figures": "2"}
        # Another watcher, which was busy while all were woken.
        assert (await feed.after(version, 5.0))[1] == {"figures": "2"}

    watched(check)


def test_a_page_that_was_dropped_and_made_again_is_sent_whole():
    async def check(journal, feed):
        version, _ = await feed.after(0, 5.0)
        journal.shown = Shown()
        newer, parts = await feed.after(version, 5.0)
        assert newer > version
        assert parts == {"figures": "0"}

    watched(check)


def test_a_look_that_fails_ends_the_watchers_and_does_not_leave_them_waiting():
    async def check(journal, feed):
        version, _ = await feed.after(0, 5.0)
        journal.text = "broken"
        with pytest.raises(OSError, match="the disk is gone"):
            await feed.after(version, 5.0)

    watched(check)


def test_a_part_whose_stamp_is_as_before_is_not_rendered_again():
    shown, rendered = Shown(), []

    def take(stamp, text):
        shown.take({"notes": Part(stamp, lambda: rendered.append(text) or text)})

    take(1, "a")
    take(1, "b")
    assert (rendered, shown.after(0)[1]) == (["a"], {"notes": "a"})
    first = shown.version
    take(2, "a")
    assert (rendered, shown.after(first)[1]) == (["a", "a"], {})


def test_the_first_look_is_not_on_the_event_loop_and_a_busy_page_holds_up_nobody():
    """The first look reads all of a journal. Later ones would wait for another thread that does so."""
    journal, free = Journal(), threading.Event()

    def first():
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        return journal.look()

    async def carry_out():
        feed = Feed(first, lambda: journal.look() if free.is_set() else None)
        with feed.watched():
            version, parts = await feed.after(0, 5.0)
            assert parts == {"figures": "0"}
            journal.text = "1"
            assert await feed.after(version, 3 * POLL_S) == (version, {})
            free.set()
            assert (await feed.after(version, 5.0))[1] == {"figures": "1"}

    asyncio.run(carry_out())


def test_a_page_that_another_thread_renders_is_not_waited_for(server, folder):
    record(folder, "load-1")
    assert server.look_unless_busy("load-1") is not None
    held, done = threading.Event(), threading.Event()

    def render():
        with server._lock:
            held.set()
            done.wait(10)

    thread = threading.Thread(target=render)
    thread.start()
    try:
        assert held.wait(10)
        assert server.look_unless_busy("load-1") is None
    finally:
        done.set()
        thread.join()
    assert server.look_unless_busy("load-1") is not None
