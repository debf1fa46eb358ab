"""Writes the pages of the papers, or adds a result and then writes them."""

from __future__ import annotations

import argparse
from pathlib import Path

from labs import papers


def main() -> None:
    parser = argparse.ArgumentParser(description=papers.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="add the result of a finished study")
    parser.add_argument(
        "--only", action="append", default=[], metavar="EXHIBIT", help="of it, only this table or figure"
    )
    parser.add_argument("--lab", default="", metavar="NAME", help="it is a study of this lab (labs/NAME)")
    given = parser.parse_args()
    if given.record:
        print(f"recorded in {papers.record(given.record, given.only, given.lab)}")
    papers.write()


if __name__ == "__main__":
    main()
