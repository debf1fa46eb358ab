"""The whole command on this host, with groups of its own."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from partywall.sandbox import cgroups
from tests.measured import measured

SPIN = "while True: pass"
VICTIM = "import sys\nwhile True:\n  for _ in range(3000): pass\n  print('x', flush=True)"
NAMES = ("guilty", "innocent")


@pytest.fixture
def neighbours() -> Iterator[list[str]]:
    """Two groups that each use a CPU: the first one that of the victim. They need two CPUs."""
    here, cpus = cgroups.read(), sorted(os.sched_getaffinity(0))
    if os.geteuid() or here.why_not() or len(cpus) < 2:
        pytest.skip("no right to make cgroups, or only one CPU")
    names = [f"/partywall-test-{os.getpid()}-{name}" for name in NAMES]
    folders = [here.folder(controller, name) for name in names for controller in ("cpu", "cpuacct")]
    folders = [folder for folder in dict.fromkeys(folders) if folder.parent.is_dir()]
    with contextlib.ExitStack() as stack:
        for folder in folders:
            folder.mkdir()
            stack.callback(folder.rmdir)
        for name, cpu in zip(names, cpus, strict=False):
            process = stack.enter_context(subprocess.Popen(["taskset", "-c", str(cpu), sys.executable, "-c", SPIN]))
            stack.callback(process.wait)
            stack.callback(process.kill)
            for controller in ("cpu", "cpuacct"):
                folder = here.folder(controller, name)
                if folder.is_dir():
                    (folder / "cgroup.procs").write_text(str(process.pid))
        yield names


@pytest.mark.host
@pytest.mark.slow
@measured
def test_the_neighbour_on_the_victims_cpu_is_named_and_the_host_is_as_before(
    tmp_path_factory: pytest.TempPathFactory, neighbours: list[str]
):
    tmp_path = tmp_path_factory.mktemp("blame")
    here, cpu = cgroups.read(), min(os.sched_getaffinity(0))
    files = [path for name in neighbours for path in here.folder("cpu", name).glob("cpu.[cm]*") if os.access(path, 4)]
    before = {path: path.read_text() for path in files}
    script = tmp_path / "victim.py"
    script.write_text(VICTIM)
    command = [sys.executable, "-m", "partywall", "blame", *neighbours, "--out", str(tmp_path / "out")]
    command += ["--victim", f"taskset -c {cpu} {sys.executable} {script}", "--budget", "60s", "--harm", "30%"]
    done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)["result"]
    assert [each["suspect"] for each in result["suspects"] if each["state"] == "guilty"] == neighbours[:1]
    assert {path: path.read_text() for path in files} == before
    lines = [json.loads(line) for line in (tmp_path / "out" / "events.jsonl").read_text().splitlines()]
    kinds = [line["kind"] for line in lines]
    assert kinds.count("pulse") == kinds.count("slot") > 60
