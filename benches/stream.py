"""Whether the memory kernels measure what STREAM measures: ours beside its method, written in C and compiled here.

Ours run as probes. Both sides use arrays of 64 MiB, the same kind of pages, one CPU and fresh memory for each
measurement, and take turns. Each figure is the median over pairs of our MB/s (STREAM) over the peer's, with its
interval. A side's rate is a median, which a moment of foreign load does not move: of its slices, or of its rounds,
both of some 6 ms. The peer is compiled with -O3: with -O2, GCC 12 uses 8-byte stores in scale and triad, where the
kernels and other compilers use 16-byte stores.

--quick: ordinary pages, fewer and shorter pairs. On a host whose speed changes all the time, their median is known to
some 5 %, so the interval has to reach into the 3 %.
"""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from agents import Kernel, Resident
from common import Ratio, interleaved, work
from disturbance import undisturbed
from frame import Options, Outcome, bench
from partywall.agent.catalogue import shipped
from partywall.host.label import Label

BLOCK_BYTES = 64 << 20
LOW, HIGH = 0.97, 1.03
CPU = 0
SLICE_NS = 6_000_000
PLANTED_FACTOR = 0.9
PAGES = {"ordinary pages": ("mapped", False), "huge pages": ("huge", True)}


@dataclass(frozen=True)
class Extent:
    """How much is measured of each loop. seconds and rounds: of a pair, by ours and by the peer."""

    pairs: int
    seconds: float
    rounds: int


LONG, SHORT = Extent(31, 0.6, 25), Extent(17, 0.25, 10)


@dataclass(frozen=True)
class Item:
    """One loop on one kind of pages. pages: as the peer takes them; huge: as ours does."""

    loop: str
    title: str
    pages: str
    huge: bool

    def __str__(self) -> str:
        return f"{self.loop}, {self.title}"


def ours(item: Item, label: Label, seconds: float, plant: float) -> float:
    """MB/s as STREAM counts."""
    kernel = shipped().kernel(f"memory-{item.loop}")
    assert kernel is not None
    figure = kernel.also or kernel.figure
    assert figure["label"] == "MB/s (STREAM)"
    params = {"block_bytes": BLOCK_BYTES, "huge_pages": item.huge}
    with Resident(label, Kernel(kernel.name, params), (CPU,), flat_out=True, slice_ns=SLICE_NS) as resident:
        return plant * resident.typical(seconds) / float(figure["divisor"])


def peer(item: Item, program: Path, rounds: int) -> float:
    """The median of the rounds, in MB/s."""
    elements = str(BLOCK_BYTES // 8)
    command = ["taskset", "-c", str(CPU), str(program), elements, str(rounds), item.pages, item.loop, "apart"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return float(done.stdout.split()[2])


def compared(item: Item, label: Label, program: Path, extent: Extent, plant: float) -> Ratio:
    return undisturbed(
        lambda: interleaved(
            lambda: ours(item, label, extent.seconds, plant), lambda: peer(item, program, extent.rounds), extent.pairs
        ),
        lambda ratio: agrees(ratio, extent),
    )


def agrees(ratio: Ratio, extent: Extent) -> bool:
    low, high = ratio.interval() if extent is SHORT else (ratio.median, ratio.median)
    return low <= HIGH and high >= LOW


def verdict(item: Item, ratio: Ratio, extent: Extent) -> bool:
    met = agrees(ratio, extent)
    print(f"{'ok ' if met else 'OFF'} {item!s:<24} {ratio}", flush=True)
    return met


@bench(plants={"factor": f"our rates times {PLANTED_FACTOR:g}"}, needs=("gcc",))
def main(given: Options) -> Outcome:
    plant = PLANTED_FACTOR if given.plant else 1.0
    extent = SHORT if given.quick else LONG
    chosen = list(PAGES.items())[: 1 if given.quick else None]
    items = [Item(loop, title, *pages) for title, pages in chosen for loop in ("copy", "scale", "triad")]
    with work("bench-stream") as label, tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "stream"
        source = Path(__file__).with_name("stream.c")
        subprocess.run(["gcc", "-O3", "-o", str(program), str(source)], check=True)
        results = [verdict(item, compared(item, label, program, extent, plant), extent) for item in items]
    return Outcome(f"{sum(results)} of {len(results)} loops within 3 % of STREAM's method", all(results))


if __name__ == "__main__":
    main()
