"""CPU load of guests over time: traces in PlanetLab's format, or generated ones with a daily shape.

A trace is a file for each guest, with its CPU utilisation in percent, a line for every five minutes. Hidden files, such
as those that macOS puts beside others, are no traces.
"""

from __future__ import annotations

import codecs
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from partywall import units
from partywall.consolidate.placement.state import Floats
from partywall.errors import Problem, UsageError

INTERVAL_S = 300.0
SAMPLES = 288
"""A day."""
ROUNDING = 0.1
"""Percentage points above 100 that are taken for rounding."""


def read(path: Path) -> Floats:
    """(guests, samples) of utilisation from 0 to 1, from a folder or a tar archive. UsageError with all mistakes."""
    series: dict[str, Floats] = {}
    problems: list[Problem] = []
    for name, content in _files(path):
        try:
            series[name] = _parsed(content)
        except ValueError as error:
            problems.append(Problem(str(error), "a line is a percentage, e.g. 24", f"{path}/{name}"))
    if not problems and not series:
        folders = sorted(each.name for each in path.iterdir() if each.is_dir()) if path.is_dir() else []
        said = f"holds no traces, but {units.counted(len(folders), 'folder')}" if folders else "holds no traces"
        remedy = f"give one day: {path}/{folders[0]}" if folders else "give a folder or archive with a file a guest"
        problems.append(Problem(said, remedy, str(path)))
    lengths = {len(each) for each in series.values()}
    if not problems and len(lengths) > 1:
        said = f"traces have different lengths: {min(lengths)} to {max(lengths)} samples"
        problems.append(Problem(said, "give traces of the same length", str(path)))
    if problems:
        raise UsageError(*problems)
    return np.array([series[name] for name in sorted(series)])


def _parsed(content: bytes) -> Floats:
    lines = content.removeprefix(codecs.BOM_UTF8).split()
    for number, line in enumerate(lines, start=1):
        try:
            value = float(line)
        except ValueError:
            raise ValueError(f"line {number} is {line.decode(errors='replace')[:40]!r}, not a number") from None
        if not 0 <= value <= 100 + ROUNDING:
            raise ValueError(f"line {number} is {line.decode()}, not between 0 and 100")
    if len(lines) < 2:
        raise ValueError(f"it has {len(lines)} samples, and two are the least")
    return np.minimum([float(line) for line in lines], 100) / 100


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        if path.is_dir():
            files = (each for each in sorted(path.iterdir()) if each.is_file() and not _is_hidden(each.name))
            yield from ((each.name, each.read_bytes()) for each in files)
            return
        with tarfile.open(path) as archive:
            for member in archive:
                wanted = member.isfile() and not _is_hidden(member.name)
                file = archive.extractfile(member) if wanted else None
                if file is not None:
                    yield member.name, file.read()
    except (OSError, tarfile.TarError) as error:
        raise UsageError(
            Problem(f"cannot be read: {error}", "give a folder or a tar archive of traces", str(path))
        ) from None


def _is_hidden(name: str) -> bool:
    return PurePosixPath(name).name.startswith(".")


def generated(guests: int, seed: int, samples: int = SAMPLES) -> Floats:
    """(guests, samples) with a daily shape: nights are quiet, some guests are busy by day, most idle with bursts.

    Means spread like those of PlanetLab's guests (log-normal, median 8 %). The daily swing, its phase, the noise, which
    is autocorrelated, and bursts differ between guests.
    """
    chance = np.random.default_rng(seed)
    mean = np.minimum(0.6, chance.lognormal(np.log(0.08), 0.8, (guests, 1)))
    swing = chance.beta(2, 2, (guests, 1))
    phase = chance.normal(14.0, 1.5, (guests, 1))
    hours = np.arange(samples) * INTERVAL_S / 3600
    day = 1 + swing * np.cos((hours - phase) * 2 * np.pi / 24)
    noise = np.zeros((guests, samples))
    steps = chance.normal(0, 0.25, (guests, samples))
    for place in range(1, samples):
        noise[:, place] = 0.8 * noise[:, place - 1] + steps[:, place]
    burst = (chance.random((guests, samples)) < 0.02) * chance.uniform(0, 0.5, (guests, samples))
    return np.asarray(np.clip(mean * day * np.exp(noise - noise.var() / 2) + burst, 0.0, 1.0))
