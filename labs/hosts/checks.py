"""What is done on each stock host: one function a capability, in the order in which a new user would try them.

A check runs commands as a user would and judges what they say and leave. It returns one line for the matrix, with the
figure it saw. It raises `LackingError` if Partywall named a reason why the capability is not there, and `FailedError`
if anything else came of it. Everything runs in a folder of the user's own, outside any clone.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from labs.hosts import guests, image, limits, pinning, recipes
from labs.hosts import topology as shape
from labs.hosts.bench import BOX, CAPABILITY, MEASURED, USAGE, Bench, FailedError, expect, lacking
from partywall import units

HERE = Path(__file__).parent
INSIDE = HERE / "inside"
# Parts of doctor's output: CPUs, memory, the agent, a backend.
FEWEST_THERE = 5
# An emulated host's timers are late, so a sender may miss what it could have; a ceiling is never passed.
GUARD_BELOW, GUARD_ABOVE = 0.08, 0.02
# A receiver that stands still for a moment reads the rest at once.
TCP_ABOVE = 0.04
# Tests whose subject differs between kernels: cgroups, hooks and queues. All host tests would take hours, emulated.
TESTS_OF_KERNELS = (
    *("sandbox/test_host.py", "sandbox/test_delegation.py", "run/test_execute.py", "run/test_commands.py"),
    *("guard/test_lab.py", "guard/test_evasion.py", "trace/test_trace_host.py", "trace/test_trace_paths.py"),
)
# Netem counts for longer than the trace lasts, so the shares differ by chance.
LOSS_POINTS = 0.03
# More than an emulated core delivers would wait for the core, not for the guard.
FRAMES_PPS = 5000
# A container's process may keep a page from the time before its control group.
BOUND_SHARE = 0.99


def install(bench: Bench) -> str:
    """The wheel, in the prepared environment; an ordinary user installs it and all it needs in an empty one."""
    machine = bench.machine
    machine.bring([bench.wheel, INSIDE, HERE / "scenarios"], "/opt/try")
    bench.as_root(f"mkdir -p {bench.home}/work && chown -R {bench.user}: {bench.home}/work && chmod -R a+rX /opt/try")
    wheel = f"/opt/try/{bench.wheel.name}"
    if bench.host.place == "user":
        new = f"python3 -m venv {bench.environment}"
        bench.shell(f"{new} && pip install --quiet --no-index --find-links {image.WHEELS} {wheel}", timeout_s=900)
    else:
        pip = f"{image.VENV}/bin/pip install --quiet --no-index --no-deps --force-reinstall"
        bench.as_root(f"{pip} {wheel}")
    if bench.host.place == "docker":
        bench.as_root(BOX)
    version = bench.partywall("--version").last
    return f"{version} from the wheel, Python {bench.host.image.python}"


def doctor(bench: Bench) -> str:
    text = bench.partywall("doctor").text
    expect("agent: answers" in text, f"doctor: {text.splitlines()[0]}")
    there, remedies, missing = text.count("✓"), text.count("get it:"), len(re.findall(r"^\s*[–✗] ", text, re.MULTILINE))
    expect(there >= FEWEST_THERE, f"doctor: only {there} things are there")
    expect(remedies >= missing, f"doctor: {missing} things are missing, with {remedies} remedies")
    return f"{there} there, {remedies} missing with a remedy"


def topology(bench: Bench) -> str:
    """CPUs, cores, sockets, nodes, caches and memory, compared with what lscpu and free say there."""
    seen = _seen(bench, "facts", shape.LSCPU, shape.LSCPU_CACHES, shape.FREE)
    facts = seen["facts"]
    different = shape.differences(facts, shape.Tools(*seen["tools"]))
    expect(not different, "; ".join(different))
    counted = bench.partywall("doctor --format json").text
    expect(f'"{len(facts["cpus_allowed"])} allowed (' in counted, "doctor counts other CPUs than the agent's facts")
    cpus, nodes = len(facts["cpu"]["places"]), len(facts["memory"]["nodes"])
    cores = len({(place["package"], place["core"]) for place in facts["cpu"]["places"]})
    sockets = len({place["package"] for place in facts["cpu"]["places"]})
    parts = ((sockets, "socket"), (nodes, "node"), (cores, "core"), (cpus, "CPU"))
    counts = ", ".join(units.counted(number, noun) for number, noun in parts)
    return f"{counts} and their caches as lscpu states; memory as free states"


def tour(bench: Bench) -> str:
    """README's five minutes, without what has a check of its own."""
    steps = (
        "kernels",
        "kernels cache",
        "probe cache --level L2 --order random --for 1s",
        "stress memory-copy --intensity 50% --for 1s",
        "scenario check /opt/try/scenarios/limits.yaml",
        "run demo --dry-run",
        "study",
        "load schema",
    )
    for step in steps:
        accepted = (0, CAPABILITY) if step.startswith("scenario check") else (0,)
        if bench.host.cpus == "1" and step.startswith("run demo"):
            accepted = (0, USAGE)
        bench.partywall(step, *accepted)
    return f"{len(steps)} commands"


def demo(bench: Bench) -> str:
    """The main job in a shortened form, then all that is made of its run."""
    bench.shell("rm -rf short")
    bench.partywall("run /opt/try/scenarios/short.yaml --out short", *MEASURED, timeout_s=600)
    bench.partywall("report short -f csv -f parquet", *MEASURED)
    bench.partywall("sql short 'SELECT count(*) FROM slices'")
    cells = bench.findings("short")["cells"]
    kept = next((cell["isolation"]["value"] for cell in cells if _is(cell, "integer", "same-core")), None)
    if kept is None:
        said = bench.shell('grep -ho \'"reason": *"[^"]*"\' short/events.jsonl | sort | uniq -c', 60).text
        raise FailedError(f"the run has no figure for integer beside its own core's neighbour: {said.strip()}")
    expect(0.3 < kept < 0.7, f"beside a neighbour on its own core the victim kept {kept:.2f}")
    return f"{len(cells)} cells; beside a neighbour on its own core a victim keeps {kept:.2f}"


def _is(cell: dict[str, Any], victim: str, aggressor: str) -> bool:
    return (cell["victim"], cell["aggressor"]) == (victim, aggressor) and cell["isolation"] is not None


def container_limits(bench: Bench) -> str:
    """Containers: a CPU ceiling switched live, and a weight. A short run; benches/limits_v2.py asks for more.

    On a host with two NUMA nodes, also a container whose memory comes from the second.
    """
    said = limits.judged(limits.short(bench))
    return f"{said}; {_bound(bench, node=1)}" if "-numa" in bench.host.machine else said


def _bound(bench: Bench, node: int) -> str:
    pages = {int(number): count for number, count in _seen(bench, "nodes", str(node))["pages"].items()}
    share = pages.get(node, 0) / max(1, sum(pages.values()))
    said = f"memory bound to node {node}: {share:.1%} of its pages are there"
    expect(share > BOUND_SHARE, said)
    return said


def smt(bench: Bench) -> str:
    """A run without SMT, whole and killed: which CPUs are online while it measures, and that all are back after it."""
    seen = _seen(bench, "smt", timeout_s=900)
    before = seen["before"]
    said = f"CPUs {seen['without'] or before} instead of {before} are online while it measures"
    holds = seen["code"] in MEASURED and bool(seen["without"]) and seen["after"] == before
    expect(holds, f"{said}, {seen['after']} after it")
    killed = f"after kill -9 {seen['killed']}, after reap {seen['reaped']}"
    expect(seen["killed"] != before and seen["reaped"] == before, killed)
    return f"{said}; {killed}"


def load(bench: Bench) -> str:
    bench.shell("rm -rf load")
    own = ""
    if bench.host.place == "docker":
        # The container has a network of its own, so the server is in it.
        own = "mkdir -p served && (python3 -m http.server --directory served 80 >/dev/null 2>&1 &) && sleep 5"
    else:
        bench.as_root("systemctl start nginx")
    bench.partywall("load http://127.0.0.1/ --users 5 --for 5s --out load", *MEASURED, before=own)
    table = bench.partywall("sql load 'SELECT sum(requests) FROM seconds'").text
    requests = max(map(int, re.findall(r"\d+", table)), default=0)
    expect(requests > 0, "no request was answered")
    return f"{requests} requests in 5 s"


def _refused(bench: Bench, arguments: str) -> str:
    """Where interfaces may not be hooked the command itself must say so, before it looks for any."""
    if bench.host.place == "root":
        return ""
    bench.partywall(arguments)
    return "works without root"


def _seen(bench: Bench, name: str, *arguments: str, timeout_s: float = 180) -> dict[str, Any]:
    """What a program of inside/ saw: its last line."""
    command = shlex.join(["python3", f"/opt/try/inside/{name}.py", *arguments])
    output = bench.shell(command, timeout_s=timeout_s)
    if output.code == CAPABILITY:
        raise lacking(bench, output)
    expect(output.code == 0, f"{name}: {output.last}")
    return dict(json.loads(output.last))


def guard(bench: Bench) -> str:
    if said := _refused(bench, "guard run /opt/try/inside/policy.yaml --for 1s"):
        return said
    result = _seen(bench, "guard")
    said = f"{result['bps'] / 1e6:.3f} of {result['ceiling'] / 1e6:g} Mbit/s, {result['left'] or 'nothing'} left"
    expect(-GUARD_BELOW < result["kept"] - 1 < GUARD_ABOVE and not result["left"], said)
    return said


def guard_tcp(bench: Bench) -> str:
    """A TCP connection where the guard has only a hook, so that its packets take the detour through an `ifb`."""
    result = _seen(bench, "guard_tcp")
    detour = "through an ifb" if result["detour"] else "without a detour"
    said = f"{result['bps'] / 1e6:.3f} of {result['ceiling'] / 1e6:g} Mbit/s received, {detour}, "
    said += f"{result['left'] or 'nothing'} left"
    expect(-GUARD_BELOW < result["kept"] - 1 < TCP_ABOVE and result["detour"] and not result["left"], said)
    return said


def trace(bench: Bench) -> str:
    if said := _refused(bench, "trace lo:out lo:in --for 1s"):
        return said
    seen = _seen(bench, "trace")
    expect(seen["netem"], "this kernel has no netem, so there is no truth to hold the trace against")
    said = f"netem's 5 ms and {seen['dropped']:.1%} seen as {seen['delay_ms']:.2f} ms and {seen['lost']:.1%}"
    expect(4.9 < seen["delay_ms"] < 8 and abs(seen["lost"] - seen["dropped"]) < LOSS_POINTS, said)
    return said


def reap(bench: Bench) -> str:
    """A run that is killed leaves things behind, and the next start takes them away."""
    # Where containers may be made, a run of these: they leave cgroups beside processes.
    scenario = "limits" if bench.host.place in ("root", "scope") else "short"
    output = bench.shell(f"bash /opt/try/inside/killed.sh /opt/try/scenarios/{scenario}.yaml", timeout_s=240)
    expect(output.code == 0, f"after kill -9: {output.last}")
    return output.last


def tests(bench: Bench) -> str:
    """The tests whose subject differs from kernel to kernel, from this clone."""
    return bench.tested(TESTS_OF_KERNELS, 3600)


def migrate(bench: Bench) -> str:
    """A guest moves between two namespaces by this host's QEMU, once by each method; under KVM where there is KVM."""
    under_kvm = "vm-check" in bench.host.long
    plan = "kvm-move" if under_kvm else "move"
    methods = YAML(typ="safe").load(HERE / "scenarios" / f"{plan}.yaml")["methods"]
    bench.shell("rm -rf moved")
    bench.partywall("vm prepare")
    bench.partywall(f"migrate /opt/try/scenarios/{plan}.yaml --out moved", *MEASURED, timeout_s=3000)
    findings = bench.findings("moved")
    moves = findings["moves"]
    is_emulated = any(note.startswith("The guest was emulated") for note in findings["notes"])
    expect(not (under_kvm and is_emulated), "the guest that moved was emulated")
    seen = {each["move"]["method"]: each for each in moves}
    said = "; ".join(f"{name}: {each['move']['outcome']}, {_blackouts(each['values'])}" for name, each in seen.items())
    sound = all(each["move"]["outcome"] == "completed" and each["move"]["intact"] for each in moves)
    expect(seen.keys() == methods.keys() and sound, said)
    return said


def _blackouts(values: dict[str, float]) -> str:
    names = {"downtime_s": "QEMU's downtime", "stopped_s": "guest stopped", "clients_s": "clients waited"}
    expect(names.keys() <= values.keys(), f"of the three blackouts there are {sorted(names.keys() & values.keys())}")
    return ", ".join(f"{name} {values[key] * 1e3:.0f} ms" for key, name in names.items())


def no_root(bench: Bench) -> str:
    """What an ordinary user gets, and how the rest is refused: benches/no_root.py, with a user manager of systemd."""
    names = ("no_root", "left_behind", "frame", "common", "results")
    needed = [image.CLONE / "benches" / f"{name}.py" for name in names]
    bench.machine.bring(needed, "/opt/benches")
    bench.as_root("chmod -R a+rX /opt/benches")
    output = bench.shell("python3 /opt/benches/no_root.py --quick", timeout_s=900)
    expect(output.code == 0, output.last)
    return output.last.removeprefix("no root: ").removesuffix(" [bar met]")


def guard_cost(bench: Bench, *, quick: bool) -> str:
    """What a frame costs that waits in `fq`, beside HTB: one part of benches/guard_cost.py, at a rate for emulation."""
    needed = [
        image.CLONE / "benches" / f"{name}.py"
        for name in ("guard_cost", "guards", "agents", "frame", "common", "results")
    ]
    bench.machine.bring(needed, "/opt/benches")
    part = f"--only 'limited 1514 bytes' --pps {FRAMES_PPS}{' --quick' if quick else ''}"
    output = bench.shell(f"python3 /opt/benches/guard_cost.py {part}", timeout_s=3600)
    expect("guard, holding (tbf)" in output.text, f"the guard did not use fq: {output.last}")
    expect(output.code == 0, output.last)
    return output.last.removeprefix("guard-cost: ").removesuffix(" [bar met]")


CHECKS: dict[str, Callable[[Bench], str]] = {
    "install": install,
    "doctor": doctor,
    "topology": topology,
    "tour": tour,
    "run": demo,
    "container-limits": container_limits,
    "load": load,
    "guard": guard,
    "guard-tcp": guard_tcp,
    "trace": trace,
    "reap": reap,
    "no-root": no_root,
    "recipes": recipes.tried,
    "tests": tests,
    "pinning": pinning.tried,
    "smt": smt,
    "vm-check": guests.check,
    "guest-limits": guests.held,
    "guest-load": guests.users,
    "guest-trace": guests.trace,
    "libvirt": guests.domains,
    "guest-power": guests.watts,
    "migrate": migrate,
    "guest-tests": guests.tests,
    "guard-cost-short": lambda bench: guard_cost(bench, quick=True),
    "guard-cost": lambda bench: guard_cost(bench, quick=False),
    "limits-short": lambda bench: limits.judged(limits.measured(bench, quick=True)),
    "limits-full": lambda bench: limits.judged(limits.measured(bench, quick=False)),
}
