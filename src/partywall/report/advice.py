"""What each warning means for the figure it stands beside, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

from partywall.model.finding import Warn


@dataclass(frozen=True)
class Advice:
    """A warning in plain words."""

    title: str
    meaning: str
    remedy: str


ADVICE: dict[Warn, Advice] = {
    Warn.CARRY_OVER: Advice(
        "The effect still moved within the slots",
        "The late half of the slots differs from the early half by more than chance: the neighbour's effect had "
        "not fully come or gone when it was measured, so the figure mixes two states and probably understates the"
        " harm.",
        "Raise timing.slot_max (or the aggressor's settle) and run again; the slot is lengthened by itself up to "
        "that bound.",
    ),
    Warn.FEW_BLOCKS: Advice(
        "Too few blocks",
        "The interval rests on so few blocks that its width is itself uncertain. A verdict on it is inconclusive.",
        "Raise the budget, or measure fewer treatments in it.",
    ),
    Warn.STEAL: Advice(
        "The hypervisor took CPU time away",
        "This host is itself a virtual machine and did not run for part of the slots. Both baseline and treated "
        "slots meet it, so it widens the interval more than it shifts the figure; but latencies at high "
        "percentiles contain it.",
        "Prefer a machine of your own, or a quieter time; look at the block table for the slots that were hit.",
    ),
    Warn.FOREIGN_LOAD: Advice(
        "Something else was running",
        "Programs that do not belong to this run used CPU time during the slots. Random order spreads it over all"
        " treatments; it widens the interval.",
        "Stop other work, or find it in the list of disturbances.",
    ),
    Warn.DRIFTING_EFFECT: Advice(
        "The effect itself changed during the run",
        "Blocks differ from one another by more than sampling noise: the figure is an average over states of the "
        "host, and another hour may give another average. The interval allows for it within this run only.",
        "Look at the effect over time; run longer, or at several times of the day.",
    ),
    Warn.NULL_EFFECT: Advice(
        "The null aggressor seems to do something",
        "An aggressor that presses on nothing moved this victim beyond chance. Some of it is expected (one in "
        "twenty at 95 %); more means that the measurement itself disturbs, and effects of this size must not be "
        "believed.",
        "Distrust effects no larger than this one; pin victim and aggressors to other cores, lengthen the guard, "
        "run again.",
    ),
    Warn.NULL_LATENCY: Advice(
        "The null aggressor seems to change the latency",
        "An aggressor that presses on nothing moved this victim's 99th percentile beyond chance. Some of it is "
        "expected (one in twenty at 95 %); more means that switching itself delays operations, and latency impacts of "
        "this size must not be believed.",
        "Distrust latency impacts no larger than this one; lengthen the guard or the slots, run longer.",
    ),
    Warn.THROTTLED: Advice(
        "A CPU limit throttled the victim",
        "The victim's cgroup was stopped for part of its period. Its rate then shows the limit, not the neighbour.",
        "Take the limit away, or read the figure as efficiency under that limit.",
    ),
    Warn.AGGRESSOR_FELL_SHORT: Advice(
        "The aggressor did not reach its intensity",
        "The stressor achieved clearly less than was asked for, so the harm at that intensity is understated.",
        "Give it a core or limits that allow the rate; its achieved rate stands beside the cell.",
    ),
    Warn.AGGRESSOR_IDLE: Advice(
        "The command did nothing while it was on",
        "The aggressor's processes used next to no CPU time and moved next to nothing on disks while they were on, "
        "so this cell does not show what the command does to a neighbour.",
        "Check that the command works for longer than the run, waits for nothing, and does not hand its work to a "
        "service outside its own processes.",
    ),
    Warn.AGGRESSOR_NOT_STOPPED: Advice(
        "The command went on while it was off",
        "Processes of the aggressor used CPU time in the baseline slots, in which they should have been stopped. A "
        "process that leaves the command's process group (a daemon, setsid) is not stopped with it. The baseline was "
        "pressed on too, so the harm is understated.",
        "Run the program in the foreground, without a daemon or a new session.",
    ),
    Warn.EMULATED: Advice(
        "Emulated",
        "The victim or the aggressor ran on an emulated processor. Its caches, memory path and clock are those of"
        " the emulator: ratios between treatments of this run can be compared with each other, and with nothing "
        "else.",
        "Run on a host with hardware virtualisation for figures that carry over.",
    ),
    Warn.SWAPPING: Advice(
        "The host was swapping",
        "Pages went to or came from swap during the slots; memory figures then are figures of the disk.",
        "Free memory or lower the aggressor's bound; the memory check before a run says how much there is.",
    ),
    Warn.SHARED_DISK_CACHE: Advice(
        "The page cache stood between victim and disk",
        "Reads or writes were served from memory that victim and aggressor share, so the figure is not of the "
        "disk alone.",
        "Use a direct disk kernel, or a file larger than memory.",
    ),
}
