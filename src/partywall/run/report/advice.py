"""The meaning of each warning for its figure, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass

from partywall.agent.catalogue import Warn


@dataclass(frozen=True)
class Advice:
    """A warning, explained for people."""

    title: str
    meaning: str
    remedy: str


ADVICE: dict[Warn, Advice] = {
    Warn.CARRY_OVER: Advice(
        "The effect still changed within the slots",
        "The late half of the slots differs from the early half by more than chance. The neighbour's effect had "
        "not fully set in or ended when it was measured, so the figure mixes two states and probably understates the"
        " harm.",
        "Raise timing.slot_max (or the aggressor's settle) and run again. Slots are lengthened automatically up to "
        "that limit.",
    ),
    Warn.COARSE_VICTIM: Advice(
        "The victim reports too seldom for such short slots",
        "Its operations, or pauses of a busy host, reach from one slot into the next: over 5 % of the work of half of "
        "the slots was done under another treatment. The figure understates the effect by about that share.",
        "Raise the budget or timing.slot, so that longer slots fit; stop other work on the host.",
    ),
    Warn.FEW_BLOCKS: Advice(
        "Too few blocks",
        "The interval rests on so few blocks that its width is itself uncertain. A verdict on it is inconclusive.",
        "Raise the budget, or measure fewer treatments.",
    ),
    Warn.STEAL: Advice(
        "The hypervisor took CPU time",
        "This host is itself a virtual machine and did not run for part of the slots. Both baseline and treated "
        "slots are affected, so it widens the interval more than it shifts the figure. Latencies at high "
        "percentiles include it.",
        "Use a dedicated machine or a quieter time. The block table shows the affected slots.",
    ),
    Warn.FOREIGN_LOAD: Advice(
        "Something else was running",
        "Programs that do not belong to this run used CPU time during the slots. The random order spreads this over all"
        " treatments; it widens the interval.",
        "Stop other work. The list of disturbances shows when it ran.",
    ),
    Warn.DRIFTING_EFFECT: Advice(
        "The effect itself changed during the run",
        "Blocks differ from one another by more than sampling noise: the figure is an average over several states of "
        "the "
        "host, and another hour may give another average. The interval covers this only within this run.",
        "Look at the effect over time. Run longer, or at several times of the day.",
    ),
    Warn.NULL_EFFECT: Advice(
        "The null aggressor seems to have an effect",
        "An aggressor that loads nothing changed this victim's rate by more than chance. Some of it is expected (one "
        "in "
        "twenty at 95 %); more means that the measurement itself disturbs, and effects of this size are not "
        "reliable.",
        "Do not rely on effects of this size or smaller. Pin victim and aggressors to other cores, lengthen the "
        "guard time and "
        "run again.",
    ),
    Warn.NULL_LATENCY: Advice(
        "The null aggressor seems to change the latency",
        "An aggressor that loads nothing changed this victim's 99th percentile by more than chance. Some of it is "
        "expected (one in twenty at 95 %); more means that switching itself delays operations, and latency impacts of "
        "this size are not reliable.",
        "Do not rely on latency impacts of this size or smaller. Lengthen the guard time or the slots, and run longer.",
    ),
    Warn.THROTTLED: Advice(
        "A CPU limit throttled the victim",
        "The victim's cgroup was stopped for part of each period. Its rate then shows the limit, not the neighbour.",
        "Remove the limit, or read the figure as efficiency under that limit.",
    ),
    Warn.AGGRESSOR_FELL_SHORT: Advice(
        "The aggressor did not reach its intensity",
        "The stressor achieved clearly less than the requested intensity, so the harm at that intensity is "
        "understated.",
        "Give it a core or limits that allow the rate. The cell shows the achieved rate.",
    ),
    Warn.CALIBRATION_DISTURBED: Advice(
        "The aggressor's calibration was disturbed",
        "Other processes used the aggressor's CPU while its full speed was measured, in each of several attempts. Its "
        "full speed was estimated from the CPU time that it got, so its intensities may be off.",
        "Keep the aggressor's CPUs free of other programs, or pin it to others, and run again.",
    ),
    Warn.AGGRESSOR_IDLE: Advice(
        "The command did nothing while it was on",
        "The aggressor's processes used almost no CPU time and almost no disk bandwidth while they were on, "
        "so this cell does not show what the command does to a neighbour.",
        "Check that the command runs longer than the run, waits for nothing, and does not delegate its work to a "
        "service outside its own processes.",
    ),
    Warn.AGGRESSOR_NOT_STOPPED: Advice(
        "The command continued while it was off",
        "Processes of the aggressor used CPU time in the baseline slots, in which they should have been stopped. A "
        "process that leaves the command's process group (a daemon, setsid) is not stopped with it. The baseline was "
        "under load too, so the harm is understated.",
        "Run the program in the foreground, without a daemon or a new session.",
    ),
    Warn.EMULATED: Advice(
        "Emulated",
        "The victim or the aggressor ran on an emulated processor. Its caches, memory path and clock are those of"
        " the emulator: ratios between treatments can be compared within this run only."
        "else.",
        "Run on a host with hardware virtualisation for figures that carry over.",
    ),
    Warn.SWAPPING: Advice(
        "The host was swapping",
        "Pages were written to or read from swap during the slots, so memory figures reflect the disk.",
        "Free memory or lower the aggressor's limit. The memory check before a run shows the available memory.",
    ),
    Warn.SHARED_DISK_CACHE: Advice(
        "The page cache served part of the victim's requests",
        "Reads or writes were served from memory that victim and aggressor share, so the figure does not show the "
        "disk alone.",
        "Use a direct disk kernel, or a file larger than memory.",
    ),
}
