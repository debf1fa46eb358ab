"""Partywall on stock hosts: boots each in QEMU, does there what README says, and writes down what came of it.

`make hosts`. Without KVM the hosts are emulated: what works there works, and figures are marked so. Images are built
from the distribution's packages once and kept in a cache. The machines end with this program, however that ends.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from labs import building
from labs.hosts import image, matrix
from labs.hosts.bench import Bench, FailedError, LackingError
from labs.hosts.catalogue import HOSTS, Host
from labs.hosts.checks import CHECKS
from labs.hosts.machine import HostEndedError, Machine
from partywall.errors import PartywallError, TrialError
from partywall.files import write_whole

RECORD = "results.json"
RECORDER = Path(__file__).with_name("record.py")
TOOLS = ("mmdebstrap", "mkfs.ext4", "qemu-system-x86_64", "ssh", "ssh-keygen", "setpriv")
LONG = (
    *("guard-cost", "guard-cost-short", "guard-tcp", "limits-short", "limits-full", "migrate", "no-root", "pinning"),
    *("recipes", "smt", "tests", "vm-check", "guest-limits", "guest-load", "guest-trace", "libvirt", "guest-power"),
    "guest-tests",
)
"""Checks that are done only on request, or on hosts that name them."""


@dataclass(frozen=True)
class Result:
    """What came of one check. status: works, loss, cannot or failed. seconds: of the last try."""

    status: str
    text: str
    seconds: float


Keep = Callable[[Mapping[str, Result]], object]


def _forgotten(_: Mapping[str, Result]) -> None:
    """What is done with results that nobody keeps."""


def tried(
    host: Host, wheel: Path, names: Sequence[str], options: argparse.Namespace, keep: Keep = _forgotten
) -> dict[str, Result]:
    """Boots a host and does the checks; a check that fails does not keep the others from being done.

    keep: called with the results after each check, so that those of a lab that is killed are not lost.

    A kernel that ends of the emulator's own fault is booted again, once, and goes on with the check that it ended in.
    """
    say = _sayer(host.name)
    log = options.out / f"{host.name}.log"
    log.write_text("")
    results: dict[str, Result] = {}
    for last in (False, True):
        left = [name for name in names if name not in results]
        try:
            with Machine(host, image.built(host.image, say), options.accel, log, say) as machine:
                release = machine.run("uname -r").last
                say(f"up after {machine.boot_s:.0f} s, Linux {release}")
                bench = Bench(machine, wheel, options.out)
                # What is tried on a host that was booted again needs Partywall installed again.
                first, *rest = left if "install" in left else ["install", *left]
                _check_all(bench, [first], results, say, keep)
                if options.record and (fault := _record(bench, options.out / f"{host.name}.tree")):
                    results["record"] = Result("failed", fault, 0.0)
                _check_all(bench, rest if results[first].status != "failed" else (), results, say, keep)
        except HostEndedError as ended:
            say(str(ended))
            if last or options.accel == "kvm" or not ended.is_emulators:
                check = next((name for name in left if name not in results), left[-1])
                results[check] = Result("failed", str(ended), 0.0)
                break
        else:
            break
    return results


def _check_all(
    bench: Bench, names: Sequence[str], results: dict[str, Result], say: building.Say, keep: Keep = _forgotten
) -> None:
    for name in names:
        began = time.monotonic()
        status, text = _outcome(bench, name)
        if status == "failed" and name != "install":
            # An emulated host sometimes stands still, so a check gets a second try. Its text keeps the first failure.
            say(f"{name}: failed: {text}; once more")
            first, began = text, time.monotonic()
            status, text = _outcome(bench, name)
            text += f" (second try; the first: {first})"
        results[name] = Result(status, text, round(time.monotonic() - began, 1))
        say(f"{name}: {status}: {text} ({results[name].seconds:.0f} s)")
        keep(results)
    if faults := bench.machine.faults():
        results["kernel"] = Result("failed", f"its kernel found faults in itself: {'; '.join(faults)}", 0.0)


def _record(bench: Bench, to: Path) -> str:
    """Writes down the files of the host as they are seen from where Partywall runs; what failed, or nothing."""
    try:
        bench.machine.bring([RECORDER], "/opt/try")
        done = bench.shell(f"python3 /opt/try/{RECORDER.name}", timeout_s=120)
    except (FailedError, TrialError) as error:
        return str(error)
    if done.code:
        return f"its files could not be recorded: {done.last}"
    to.write_text(done.text)
    return ""


def _outcome(bench: Bench, name: str) -> tuple[str, str]:
    """works, or loss if the catalogue names one for it; cannot, if Partywall said so; failed for all else."""
    shortfall = bench.host.shortfalls.get(name)
    try:
        text = CHECKS[name](bench)
    except HostEndedError:
        raise
    except LackingError as lacking:
        return "cannot", str(lacking)
    except (FailedError, PartywallError) as error:
        return "failed", str(error)
    except Exception as error:  # noqa: BLE001 - an answer of a form nobody thought of ends one check, not the lab
        return "failed", repr(error)
    return ("loss", f"{text} ({shortfall.why})") if shortfall and shortfall.expected == "loss" else ("works", text)


def as_expected(host: Host, name: str, result: Result) -> bool:
    """Whether a host did what the catalogue says it does: no less, and no more."""
    shortfall = host.shortfalls.get(name)
    return result.status == (shortfall.expected if shortfall else "works")


def _sayer(name: str) -> building.Say:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{name} [{time.monotonic() - began:4.0f} s] {text}", flush=True)

    return say


def newest_wheel() -> Path:
    """The newest that `make wheel` left."""
    wheels = sorted((image.CLONE / "dist").glob("partywall-*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        raise PartywallError("dist/ holds no wheel; make wheel builds one")
    return wheels[-1]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--host", choices=HOSTS, action="append", help="only this host; may be repeated")
    parser.add_argument("--check", choices=CHECKS, action="append", help="only this check, after install; repeatable")
    parser.add_argument("--list", action="store_true", help="list the hosts and what is expected of them")
    parser.add_argument(
        "--accel", choices=("tcg", "kvm"), default="tcg", help="kvm where this machine's carries guests"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/hosts"), help="folder for logs and results.json")
    parser.add_argument("--record", action="store_true", help="record each host's files, as HOST.tree beside its log")
    parser.add_argument(
        "--write-docs", action="store_true", help="keep the results for docs/hosts.md, and write its table again"
    )
    return parser.parse_args()


def chosen(requested: Sequence[str] | None, host: Host) -> list[str]:
    """The checks to do on a host: those requested, else those it is in the catalogue for."""
    if requested:
        return list(dict.fromkeys(("install", *requested)))
    return [name for name in host.only or CHECKS if name not in LONG or name in host.long]


def remembered(path: Path, name: str, about: Mapping[str, str], results: Mapping[str, Result]) -> dict[str, Any]:
    """The record with a host's results in it: those of earlier runs stay until the same check is done again.

    about: how all of them came about, for each result.
    """
    record: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"hosts": {}}
    added = {check: asdict(result) | dict(about) for check, result in results.items()}
    # Faults of a kernel are of one boot.
    before = {check: result for check, result in record["hosts"].get(name, {}).items() if check != "kernel"}
    record["hosts"][name] = before | added
    write_whole(path, json.dumps(record, indent=1) + "\n")
    return record


def _commit() -> str:
    """Of this clone, which says what the wheel holds; `-dirty` if files were changed; empty outside a clone."""
    command = ["git", "-C", str(image.CLONE), "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def unexpected(host: Host, results: Mapping[str, Result]) -> list[str]:
    """What a host did otherwise than the catalogue says, a line each."""
    return [
        f"{host.name} {name}: {result.text}" for name, result in results.items() if not as_expected(host, name, result)
    ]


def _tried_all(options: argparse.Namespace) -> tuple[int, list[str]]:
    """How many checks were done, and what came out unexpected. Each host is written down once it is done."""
    wheel, commit, count, wrong = newest_wheel(), _commit(), 0, list[str]()
    for host in [HOSTS[name] for name in options.host or HOSTS]:
        today = datetime.datetime.now().astimezone().date().isoformat()
        about = {"date": today, "accelerator": options.accel, "commit": commit, "image": image.digest(host.image)}
        keep = functools.partial(remembered, options.out / RECORD, host.name, about)
        try:
            results = tried(host, wheel, chosen(options.check, host), options, keep)
        except TrialError as error:
            results = {"install": Result("failed", str(error), 0.0)}
        keep(results)
        count += len(results)
        wrong += unexpected(host, results)
        if options.write_docs:
            matrix.write(remembered(matrix.KEPT, host.name, about, results))
    return count, wrong


def main() -> int:
    options = _arguments()
    if options.list:
        print("\n".join(f"{host.name:24} {host.summary}" for host in HOSTS.values()))
        return 0
    try:
        building.need(TOOLS, "make hosts")
        options.out.mkdir(parents=True, exist_ok=True)
        count, wrong = _tried_all(options)
    except PartywallError as error:
        print(error, file=sys.stderr)
        return int(error.exit)
    except KeyboardInterrupt:
        return 130
    print("\n".join([*wrong, f"{count - len(wrong)} of {count} as expected; logs and {RECORD} in {options.out}"]))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
