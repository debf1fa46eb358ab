"""The parts of a watched page: who gets which, and when."""

import asyncio

import pytest

from partywall.web.shown import POLL_S, Feed, Part, Shown


def parts(**texts):
    return {name: Part(text, lambda text=text: text) for name, text in texts.items()}


def test_only_parts_that_changed_since_a_version_are_sent_in_their_order():
    shown = Shown()
    shown.take(parts(status="a", row_0="x", row_1="y"))
    first = shown.version
    assert shown.after(0) == {"status": "a", "row_0": "x", "row_1": "y"}
    shown.take(parts(status="a", row_0="x", row_1="z"))
    assert list(shown.after(first)) == ["row_1"]
    second = shown.version
    shown.take(parts(status="a", row_0="x", row_1="z"))
    assert shown.version == second
    assert shown.after(second) == {}


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


async def changed(feed, journal, text, watchers=1):
    """Changes the page once the feed has looked at it, and waits until all watchers are told."""
    await asyncio.sleep(2 * POLL_S)
    waiting = [asyncio.create_task(feed.change(5.0)) for _ in range(watchers)]
    await asyncio.sleep(0)
    journal.text = text
    assert await asyncio.gather(*waiting) == [True] * watchers


def test_one_feed_serves_all_that_watch_and_ends_with_the_last():
    async def check():
        journal = Journal()
        feed = Feed(journal.look)
        with feed.watched(), feed.watched():
            await changed(feed, journal, "1", watchers=2)
            assert not await feed.change(3 * POLL_S)
        looks = journal.looks
        await asyncio.sleep(3 * POLL_S)
        assert journal.looks == looks
        with feed.watched():
            await changed(feed, journal, "2")

    asyncio.run(check())


def test_a_change_that_a_request_saw_first_is_sent_too():
    async def check():
        journal = Journal()
        feed = Feed(journal.look)
        with feed.watched():
            await changed(feed, journal, "1")
            journal.text = "2"
            journal.look()
            assert await feed.change(5.0)

    asyncio.run(check())


def test_a_look_that_fails_ends_the_watchers_and_does_not_leave_them_waiting():
    async def check():
        journal = Journal()
        feed = Feed(journal.look)
        with feed.watched():
            await changed(feed, journal, "broken")
            with pytest.raises(OSError, match="the disk is gone"):
                await feed.change(5.0)

    asyncio.run(check())


def test_a_part_whose_stamp_is_as_before_is_not_rendered_again():
    shown, rendered = Shown(), []

    def take(stamp, text):
        shown.take({"notes": Part(stamp, lambda: rendered.append(text) or text)})

    take(1, "a")
    take(1, "b")
    assert (rendered, shown.after(0)) == (["a"], {"notes": "a"})
    first = shown.version
    take(2, "a")
    assert (rendered, shown.after(first)) == (["a", "a"], {})
