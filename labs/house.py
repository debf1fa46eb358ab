"""How much a change in a capability can reach: the lines of its own modules, and of all that they import.

Imports are those of the source, also in functions, and names of modules in strings that the registry has are none. A
package that is imported counts with its `__init__` alone, as Python runs it, and so do the packages above a module.

    python labs/house.py
    python labs/house.py --core     the lines of the core and of what it stands on, file by file
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "src"
ROOT = "partywall"
BEFORE = {
    "watch": 52_100, "trace": 51_100, "guard": 51_400, "load": 54_600, "power": 51_400, "migrate": 52_300,
    "consolidate": 56_900, "run": 52_100, "study": 51_100,
}  # fmt: skip
"""What a capability reached when its parts were in as many folders as there are stages."""
CORE = ("core", "host", "agent", "sandbox", "values", "session", "units", "errors", "files", "events", "plain", "clock")


def modules() -> dict[str, Path]:
    """The file of each module by its name."""
    found = {}
    for file in (SOURCES / ROOT).rglob("*.py"):
        parts = file.relative_to(SOURCES).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports(name: str, file: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of the package that a module imports, with the packages above them."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names):
                targets = [each.name for each in names]
            case ast.ImportFrom(module=str(module), names=names, level=0):
                targets = [module, *(f"{module}.{each.name}" for each in names)]
            case _:
                continue
        for target in targets:
            parts = target.split(".")
            yield from (each for n in range(1, len(parts) + 1) if (each := ".".join(parts[:n])) in known)
    yield from (each for n in range(1, name.count(".") + 1) if (each := ".".join(name.split(".")[:n])) in known)


def reachable(start: set[str], arrows: dict[str, set[str]]) -> set[str]:
    """Everything that can be reached along arrows."""
    seen, left = set(), list(start)
    while left:
        if (name := left.pop()) not in seen:
            seen.add(name)
            left += arrows[name]
    return seen


def lines_below(folder: Path) -> int:
    """The lines of all Python files in a folder and below, but for those in hidden folders."""
    files = (file for file in folder.rglob("*.py") if "/." not in f"/{file.relative_to(folder)}")
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def reached() -> dict[str, tuple[int, int]]:
    """Of each capability, its own lines, and those that a change in it can reach."""
    known = modules()
    lines = {name: len(file.read_text(encoding="utf-8").splitlines()) for name, file in known.items()}
    # The interface is imported by the package for typing alone.
    arrows = {name: set(imports(name, file, known)) - {f"{ROOT}.api"} for name, file in known.items()}
    own = {each: {name for name in known if f"{name}.".startswith(f"{ROOT}.{each}.")} for each in BEFORE}
    return {
        each: (sum(map(lines.__getitem__, names)), sum(map(lines.__getitem__, reachable(names, arrows))))
        for each, names in own.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core", action="store_true")
    if parser.parse_args().core:
        for room in CORE:
            place = SOURCES / ROOT / room
            files = list(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
            count = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
            print(f"{room:12} {count:>7,} lines in {len(files)} files")
        return
    print(f"{'':12} {'own':>8} {'reached':>9} {'before':>9}")
    for name, (own, total) in reached().items():
        print(f"{name:12} {own:>8,} {total:>9,} {BEFORE[name]:>9,}")
    print(f"{'all':12} {lines_below(SOURCES / ROOT):>8,}")


if __name__ == "__main__":
    main()
