"""Bad plans, servers that misbehave, invalid certificates, too few files: whether each gets one clear message.

Every wrong plan of tests/load/bad_plans must give exactly the mistakes its comments name, with their lines. Every case
of tests/load/load_corpus.py is given to `python -m partywall load` in a process of its own, against servers that
refuse, reset, stay silent, speak nonsense or break off. Then the HAR importer and the plan decoder are fuzzed
(hypothesis). The parser of HTTP responses is fuzzed by `make fuzz`.

Bar: every input answered as it should be, no traceback, no decoder that fails.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS.parent))

from common import MUTE, arguments, conclude, spoilt_python  # noqa: E402
from tests.load import load_corpus  # noqa: E402

QUICK_LEAVES_OUT = ("server silent", "server long-head", "server short")


def corpus(*, quick: bool) -> list[tuple[str, list[str]]]:
    """Each case with what is wrong with its answer."""
    chosen = [case for case in load_corpus.CASES if not (quick and case.name in QUICK_LEAVES_OUT)]
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        with load_corpus.world(folder) as known, ThreadPoolExecutor(2) as pool:
            answers = pool.map(lambda case: load_corpus.complaints(case, known, folder), chosen)
            return [(case.name, answer) for case, answer in zip(chosen, answers, strict=True)]


def tests(*files: str) -> tuple[int, str]:
    """(how many passed, what failed)."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--override-ini=addopts=",
        "-p",
        "no:cacheprovider",
        *(str(TESTS / "load" / f) for f in files),
    ]
    said = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    match = re.search(r"(\d+) passed", said.stdout)
    passed = int(match[1]) if match else 0
    return passed, "" if said.returncode == 0 else said.stdout[-2000:]


def main() -> None:
    options = arguments(__doc__ or "", plants={"mute": "errors that do not say what is wrong"})
    with spoilt_python(MUTE) if options.plant else contextlib.nullcontext():
        answered = corpus(quick=options.quick)
    wrong = [(name, fault) for name, fault in answered if fault]
    for name, fault in wrong:
        print(f"{name}: {'; '.join(fault)}")
    passed, failed = tests("test_load_plan.py", "test_har.py")
    print(failed)
    loads = f"{len(answered) - len(wrong)} of {len(answered)} loads answered clearly"
    rest = f"{passed} tests of plans and recordings passed, {'some' if failed else 'none'} failed"
    conclude("load-bad-input", f"{loads}; {rest}", met=not wrong and not failed and passed > 0)


if __name__ == "__main__":
    main()
