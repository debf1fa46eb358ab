"""Every wrong value of an option is told with the option, the value, and what would do."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

from partywall.cli import main
from partywall.cli.app import COMMANDS, command

URL = "http://127.0.0.1:1/"
NUMBER, DURATION, SHARE = "must be a whole number, not 'x'", "'x' is not a duration", "'x' is not a share"
WRONG: list[tuple[str, str, str]] = [
    ("run demo --seed", "x", NUMBER),
    ("run demo --seed", "-1", "must be at least 0, not -1"),
    ("run demo --seed", str(10**30), f"must be at most {2**63 - 1}, not {10**30}"),
    ("run demo --budget", "x", DURATION),
    ("run demo --wait-for-memory", "x", DURATION),
    ("study papers/vits --wait-for-memory", "x", DURATION),
    ("run demo --budget", "0s", "must be greater than 0, not 0s"),
    ("run demo --precision", "x", SHARE),
    ("run demo --precision", "150%", "must be greater than 0 and at most 100%, not 150%"),
    ("compare a b --tolerance", "x", SHARE),
    ("compare a b --tolerance", "100%", "must be at least 0 and less than 100%, not 100%"),
    ("compare a b --chance", "x", SHARE),
    ("compare a b --chance", "100%", "must be at least 0 and less than 100%, not 100%"),
    ("compare a b --latency-tolerance", "x", SHARE),
    ("compare a b --latency-tolerance", "-1%", "must be 0 or more, not -1%"),
    ("compare a b --format", "x", "must be text or json, not 'x'"),
    ("doctor --format", "x", "must be text or json, not 'x'"),
    ("kernels --format", "x", "must be text or json, not 'x'"),
    ("kernels -f", "x", "must be text or json, not 'x'"),
    ("probe cache --threads", "0", "must be at least 1, not 0"),
    ("probe cache --threads", "x", NUMBER),
    ("probe cache --threads", "1025", "must be at most 1024, not 1025"),
    ("probe cache --for", "x", DURATION),
    ("probe cache --for", "1ms", "must be at least 200ms, not 1ms"),
    ("probe cache --cpus", "x", "'x' is not a list of CPUs"),
    ("stress cache --threads", "0", "must be at least 1, not 0"),
    ("stress cache --for", "x", DURATION),
    ("stress cache --cpus", "x", "'x' is not a list of CPUs"),
    ("stress cache --intensity", "x", SHARE),
    ("stress cache --intensity", "2", "must be from 0.1% to 100%, not 2"),
    ("load model done --users", "0", "must be at least 1, not 0"),
    ("load model done --users", "1000001", "must be at most 1000000, not 1000001"),
    (f"load record {URL} -o new.yaml --for", "x", DURATION),
    (f"load record {URL} -o new.yaml --for", "0s", "must be greater than 0, not 0s"),
    (f"load record {URL} -o new.yaml --port", "65536", "must be at most 65535, not 65536"),
    (f"load record {URL} -o new.yaml --browser", "/none", "there is no program '/none'"),
    (f"load {URL} --users", "0", "must be at least 1, not 0"),
    (f"load {URL} --users", "0.5", "must be a whole number, not 0.5"),
    (f"load {URL} --users", "1000001", "must be at most 1000000, not 1000001"),
    (f"load {URL} --rate", "x", "must be a number, not 'x'"),
    (f"load {URL} --rate", "0", "must be greater than 0 and at most 10,000,000, not 0"),
    (f"load {URL} --rate", "nan", "must be greater than 0 and at most 10,000,000, not nan"),
    (f"load {URL} --for", "x", DURATION),
    (f"load {URL} --for", "1ms", "must be at least 1s, not 1 ms"),
    (f"load {URL} --ramp", "x", DURATION),
    (f"load {URL} --ramp", "-1s", "must be 0s or more, not -1s"),
    (f"load {URL} --wait-for-memory", "x", DURATION),
    (f"load {URL} --generator", "x y", "'x y' is not a host for ssh"),
    (f"load {URL} --think", "x", DURATION),
    (f"load {URL} --think", "-2s", "must be 0s or more, not -2s"),
    (f"load {URL} --timeout", "x", DURATION),
    (f"load {URL} --method", "get", "'get' is not an HTTP method"),
    (f"load {URL} --header", "x", "'x' is not a header"),
    (f"load {URL} --data-file", "/none", "'/none' is not a file that exists"),
    (f"load {URL} --redirects", "51", "must be at most 50, not 51"),
    (f"load {URL} --redirects", "-1", "must be at least 0, not -1"),
    (f"load {URL} --threads", "0", "must be at least 1, not 0"),
    (f"load {URL} --seed", "-1", "must be at least 0, not -1"),
    (f"load {URL} --sandboxes", "65", "must be at most 64, not 65"),
    (f"load {URL} --sandbox", "x", "'x' is not a sandbox for a load"),
    (f"load {URL} --cpus", "x", "'x' is not a list of CPUs"),
    (f"load {URL} --connect-to", "x", "'x' is neither ADDRESS:PORT nor unix:PATH"),
    (f"load {URL} --watch", "x", "'x' is not NAME=COMMAND"),
    (f"load {URL} --server-host", "", "'' is not a host for ssh"),
    (f"load {URL} --sandbox container --cpu-limit", "x", SHARE),
    (f"load {URL} --sandbox container --cpu-limit", "200%", "must be greater than 0 and at most 100%, not 200%"),
    *(
        (f"guard {words} --format", "x", "must be text or json, not 'x'")
        for words in ("check policy.yaml", "adjust done policy.yaml", "remove policy.yaml")
    ),
    ("guard status --format", "x", "must be text or json, not 'x'"),
    ("guard run policy.yaml --for", "x", DURATION),
    ("guard run policy.yaml --every", "x", DURATION),
    ("guard run policy.yaml --agent", "x", "'x' is not an agent"),
    ("guard run policy.yaml --every", "0s", "must be greater than 0, not 0s"),
    *((f"fleet run localhost demo --{name}", "x", DURATION) for name in ("budget", "lease", "every")),
    *((f"fleet admit a --against done --{name}", "x", DURATION) for name in ("budget", "lease", "every")),
    ("fleet watch done --every", "x", DURATION),
    ("fleet run localhost demo --at-once", "0", "must be at least 1, not 0"),
    ("fleet run localhost demo --attempts", "11", "must be at most 10, not 11"),
    ("fleet run localhost demo --rounds", "0", "must be at least 1, not 0"),
    ("fleet run localhost demo --hours", "9-17", "'9-17' are not hours"),
    ("fleet run localhost demo --idle", "x", SHARE),
    ("fleet run localhost demo --least", "x", SHARE),
    ("fleet admit a --against done --attempts", "0", "must be at least 1, not 0"),
    ("fleet run localhost demo --engine", "x", "there is no engine 'x'"),
    ("fleet run localhost demo --hosts", "x", "no host or group is called 'x'"),
    ("fleet run localhost demo --canaries", "x", "no host or group is called 'x'"),
    ("fleet admit a --against", "/none", "/none is not the record of a fleet"),
    ("fleet admit a --against done --margin", "x", SHARE),
    ("fleet gate done --margin", "x", SHARE),
    *(
        (f"fleet {verb} done --format", "x", "must be text or json, not 'x'")
        for verb in ("watch", "report", "gate", "stop")
    ),
    ("trace a b --for", "x", DURATION),
    ("trace a b --for", "0s", "must be greater than 0, not 0s"),
    ("trace a b --one-in", "x", NUMBER),
    ("trace a b --one-in", "0", "must be from 1 to 1,000,000, not 0"),
    ("trace a b --protocol", "x", "'x' is not known"),
    ("trace a b --host", "x", "'x' is not an address"),
    ("trace a b --port", "0", "must be at least 1, not 0"),
    ("trace a b --port", "65536", "must be at most 65535, not 65536"),
    ("trace a b --nat", "x", "'x' is not a translation"),
    ("trace a b --agent", "x", "'x' is not an agent"),
    ("trace a b --horizon", "x", DURATION),
    ("trace a b --budget", "x", SHARE),
    ("trace a b --packets", "x", NUMBER),
    ("trace a b --packets", "-1", "must be from 0 to 1,000,000, not -1"),
    ("watch --for", "x", DURATION),
    *((f"blame --victim a --{name}", "x", SHARE) for name in ("depth", "deepest", "harm", "least")),
    *(
        (f"{words}", value, f"must be at most 100%, not {value} — give for example")
        for words, value in (
            ("blame --victim a --depth", "30"),
            ("blame --victim a --least", "5"),
            ("blame --victim a --harm", "200%"),
            ("fleet gate done --margin", "3"),
        )
    ),
    ("blame --victim a --harm", "0%", "must be greater than 0, not 0%"),
    *((f"blame --victim a --{name}", "x", DURATION) for name in ("pulse", "budget")),
    ("blame --victim a --apply --until", "foo", "'foo' is not a duration"),
    ("blame --victim a --most", "0", "must be at least 1, not 0"),
    ("blame --victim a --seed", "-1", "must be at least 0, not -1"),
    ("blame --victim", "/none/x", "/none/x cannot be started"),
    ("blame --pid", "999999999", "there is no process 999999999"),
    ("blame --group", "/none", "there is no group /none"),
    ("blame --log", "/none", "/none cannot be read"),
    ("blame --log /dev/null --latency", "(", "'(' is not a regular expression"),
    ("blame --victim a --latency-key", "x", "needs --log"),
    ("blame --victim a --metric", "(", "'(' is not a regular expression"),
    ("blame --probe", "x", "there is no probe 'x'"),
    ("blame --probe integer --cpus", "x", "'x' is not a list of CPUs"),
    ("blame --url", "x", "'x' is no URL"),
    ("blame --url http://127.0.0.1:9 --users", "0", "must be at least 1, not 0"),
    ("blame --query up --prometheus-url", "x", "'x' is no URL"),
    ("blame --victim a --lever", "x", "must be cpu, disk, network, cpuset or freeze, not 'x'"),
    ("blame --victim a --device", "/x", "'/x' is neither the name nor the number of a disk"),
    ("watch --for", "0s", "must be greater than 0, not 0s"),
    ("watch --every", "1ms", "must be at least 100 ms, not 1ms"),
    ("watch --every", "x", DURATION),
    ("watch --latency", "x", DURATION),
    ("watch --latency", "0s", "must be greater than 0, not 0s"),
    ("watch --device", "x", "there is no disk 'x'"),
    ("watch --prometheus", "/none/x", "/none/x cannot be written"),
    ("consolidate plan cluster --solver", "x", "must be auto, exact or heuristic, not 'x'"),
    ("consolidate simulate cluster --traces", "/none", "'/none' does not exist"),
    ("consolidate simulate cluster --policy", "x", "there is no policy 'x'"),
    ("consolidate simulate cluster --days", "0", "must be at least 1, not 0"),
    ("consolidate simulate cluster --orders", "x", NUMBER),
    ("consolidate simulate cluster --seed", "-1", "must be at least 0, not -1"),
    ("consolidate apply done --settle", "0s", "must be greater than 0, not 0s"),
    ("consolidate watch cluster --every", "x", DURATION),
    ("consolidate watch cluster --for", "x", DURATION),
    ("power read rapl --for", "x", DURATION),
    ("power read rapl --for", "0s", "must be greater than 0, not 0s"),
    ("power read rapl --every", "0s", "must be greater than 0, not 0s"),
    ("power calibrate rapl --slot", "0s", "must be greater than 0, not 0s"),
    ("power calibrate rapl --blocks", "0", "must be at least 2, not 0"),
    ("power calibrate rapl --every", "x", DURATION),
    ("power calibrate rapl --seed", "-1", "must be at least 0, not -1"),
    ("power attribute --model cervera-dl120-g6 --for", "x", DURATION),
    ("power attribute --model cervera-dl120-g6 --every", "x", DURATION),
    ("power migration done --format", "x", "must be text or json, not 'x'"),
    ("study papers/vits --rounds", "1", "must be at least 2, not 1"),
    ("study papers/vits --on", "x y", "'x y' is not a host for ssh"),
    ("study papers/load-generation-netto --machine", "sandbox=x y", "'x y' is not a host for ssh"),
    ("study papers/vits --seed", "x", NUMBER),
    ("study papers/vits --seed", "-1", "must be at least 0, not -1"),
    ("study --format", "x", "must be text or json, not 'x'"),
    ("serve --port", "x", NUMBER),
    ("serve --port", "70000", "must be at most 65535, not 70000"),
    ("serve --address", "10.0.0.1", "10.0.0.1 can be reached by others"),
    ("scenario check demo --format", "x", "must be text or json, not 'x'"),
    ("scenario list --format", "x", "must be text or json, not 'x'"),
    ("vm check --accel", "x", "must be auto, kvm or tcg, not 'x'"),
    ("serve --user", "nosuch", "there is no account 'nosuch'"),
    *(
        (f"{line} --format", "x", "must be text or json, not 'x'")
        for line in (
            *(
                "run demo",
                "sql done",
                "probe cache",
                "stress cache",
                "load model a",
                f"load {URL}",
                "trace a b",
                "watch",
                "blame",
                "fleet run localhost demo",
                "fleet admit a --against done",
            ),
            *("guard run policy.yaml", "migrate migration", "power meters", "power profiles", "power read rapl"),
            *("power calibrate rapl", "power attribute", "consolidate plan cluster", "consolidate explain done"),
            *("consolidate simulate cluster", "consolidate apply done"),
        )
    ),
    ("vm prepare --root", "x y", "'x y' cannot be the name of a package"),
]
WRONG += [(line, "1e30h", "'1e30h' is longer than a year") for line, value, said in WRONG if said == DURATION]
WRONG += [(line, "1e30", "'1e30' is ") for line, value, said in WRONG if said == SHARE]

ELSEWHERE = {
    # Paths, and free text.
    *(
        "--out",
        "--resume",
        "--work-dir",
        "--also",
        "--also-reference",
        "--prometheus",
        "--kernel",
        "--modules",
        "--known",
        "--beside",
    ),
    *("--leave-out", "--data", "--ca-file", "--certificate", "--certificate-key"),
    # Tested with the forms of studies.
    "study --form",
    # Any host name, and a flag that is counted.
    *("serve --name", "serve --insecure", "study --address"),
    *("--har", "--browser-option"),
    # Judged against a study, a run's kind or a host: `bad.toml` and the tests of those have them.
    *("--only", "--backend", "--response", "--used", "--guest"),
    # Errors name the model or the meter: tests/power has them.
    *("power attribute --model", "power attribute --meter", "power migration --model"),
    # `run.report --format` depends on the kind of record.
    "report --format",
    # Any name.
    "blame --never",
    # Any expression: tests of queries have wrong ones.
    "blame --query",
    # Judged against a record, or with the line of a file: tests/fleet has them.
    *("fleet gate --canaries", "fleet gate --before", "fleet admit --inventory", "fleet admit --engine"),
}


def parameters(of: Any, *path: str) -> list[tuple[str, str]]:
    """Command and name of each option that takes a value."""
    if hasattr(of, "commands"):
        return [result for name, each in of.commands.items() for result in parameters(each, *path, name)]
    options = [p for p in of.params if p.param_type_name == "option" and not p.is_flag]
    return [(" ".join(path), p.opts[0]) for p in options]


def test_the_table_has_a_wrong_value_for_every_option_of_every_command():
    tried = {(line.replace(f"load {URL}", "load run").partition(" --")[0], line.split()[-1]) for line, _, _ in WRONG}
    result = [pair for name in COMMANDS for pair in parameters(command(name), name)]
    left = [
        f"{name} {option}"
        for name, option in result
        if option not in ELSEWHERE
        and f"{name} {option}" not in ELSEWHERE
        and not any(line.startswith(name) and option == last for line, last in tried)
    ]
    assert left == []


@pytest.mark.parametrize(("line", "value", "said"), WRONG)
def test_a_wrong_value_is_reported_with_its_option_the_value_and_what_would_do(
    line: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    option = line.split()[-1].replace("-f", "--format") if line.endswith(" -f") else line.split()[-1]
    monkeypatch.setattr(sys, "argv", ["partywall", *line.split(), value])
    with pytest.raises(SystemExit) as ended:
        main()
    reported = " ".join(capsys.readouterr().err.split())
    assert ended.value.code == 2, reported
    assert re.search(rf"{option}:? {re.escape(said)}", reported), reported
    for raw in ("Input should be", "Value error", "Invalid value", "is not in the range", "expected u64", "Traceback"):
        assert raw not in reported
