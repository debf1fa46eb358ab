"""Does it name the right neighbour of a real service, and what the harm goes through? On this host.

nginx serves virtual users. Five containers around it run stress-ng, a compiler, PostgreSQL under pgbench, iperf3 and
fio. In each trial, one of them is guilty: it uses nginx's CPU, or, if it is fio, nginx's disk. The other four use at
most a twelfth of the other CPU each, where the users are too. `partywall blame` is asked as docs/blame.md says: first
with the lever for CPU time, then, if nobody is guilty, with that for the disk.

Bar: in at least nine of ten trials, the guilty one and nobody else is named, and waiting for the resource that it uses
is what its pulses shorten most.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blamed import expect_host
from frame import NotMeasured, Options, Outcome, bench, in_parts
from generators import serving
from partywall.host import free_port
from partywall.host.label import WORK_ROOT, Label
from partywall.sandbox import Settings, reaper
from partywall.session import Session

ROUNDS = 2
LIGHT = 1 / 12
"""What an innocent neighbour uses of its CPU, at most."""
FILE_BYTES = 256 << 20
BAR = 0.9
PLANTS = {"nobody": "no neighbour is guilty"}

NGINX = """
worker_processes 1; worker_cpu_affinity {mask}; daemon off; pid {folder}/pid; error_log {folder}/error.log crit;
user root; events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 1000000000; default_type application/octet-stream;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  server {{
    listen 127.0.0.1:{port};
    location = / {{ return 200 "hello\\n"; }}
    location /file {{ root {folder}; directio 512; aio off; sendfile off; output_buffers 1 64k; }}
  }}
}}
"""
SOURCE = "".join(f"int f{n}(int x) {{ return x * {n} + (x << {n % 7}) - x / {n + 1}; }}\n" for n in range(1, 400))


@dataclass(frozen=True)
class Neighbour:
    """A program in a container. command: a shell's, with {folder} and {port}. through: what its victims wait for."""

    name: str
    command: str
    through: tuple[str, ...] = ("a CPU",)


NEIGHBOURS = {
    each.name: each
    for each in (
        Neighbour("stress-ng", "exec stress-ng --quiet --cpu 1 --cpu-method matrixprod --temp-path {folder}"),
        Neighbour("compiler", "while :; do gcc -O2 -c -o {folder}/out.o {folder}/source.c || exit 1; done"),
        Neighbour(
            "postgres",
            "exec setpriv --reuid=postgres --regid=postgres --clear-groups sh -c 'cd {folder}/postgres && "
            "postgres -D {folder}/postgres/data -k {folder}/postgres -c listen_addresses= -c fsync=off >log 2>&1 & "
            "until pg_isready -q -h {folder}/postgres; do sleep 0.1; done; "
            "exec pgbench -h {folder}/postgres -c 4 -n -S -T 100000 postgres'",
        ),
        Neighbour(
            "iperf3",
            "iperf3 -s -p {port} >/dev/null & sleep 0.3; exec iperf3 -c 127.0.0.1 -p {port} -t 86400 -i 0",
            through=("a CPU", "packets"),
        ),
        Neighbour(
            "fio",
            "exec fio --name=f --filename={folder}/fio --size=256m --rw=randrw --bs=64k --direct=1 --ioengine=libaio "
            "--iodepth=32 --time_based --runtime=86400 --output=/dev/null",
            through=("a disk",),
        ),
    )
}


@bench(plants=PLANTS, folder=True, needs=("nginx", "stress-ng", "fio", "iperf3", "gcc", "pgbench", "crun"))
def main(options: Options) -> Outcome:
    cpus = expect_host()
    names = ["compiler"] if options.quick else [*NEIGHBOURS]
    rounds = 1 if options.quick else ROUNDS
    parts = {
        f"{name}-{number}": lambda name=name, number=number: _trial(name, number, cpus, options)
        for number in range(rounds)
        for name in names
    }
    found = in_parts(parts, options)
    right = [name for name, each in found.items() if each["is_right"]]
    wrong = "; ".join(f"{name}: {each['said']}" for name, each in found.items() if not each["is_right"])
    return Outcome(
        f"right in {len(right)} of {len(found)} trials{f' ({wrong})' if wrong else ''}", len(right) >= BAR * len(found)
    )


def _trial(guilty: str, number: int, cpus: list[int], options: Options) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as text:
        folder = Path(text)
        folder.chmod(0o755)
        _prepare(folder)
        with (
            serving(NGINX, folder, cpus[0]) as url,
            _containers("" if options.plant else guilty, cpus, folder) as groups,
        ):
            time.sleep(2)
            through = NEIGHBOURS[guilty].through
            page = f"{url}file" if "a disk" in through else url
            budget = ["--budget", "25s" if options.quick else "60s", "--harm", "30%", "--seed", str(number + 1)]
            asked = ["--url", page, "--users", "2", "--cpus", str(cpus[1]), *budget]
            found = _blame(folder / "cpu", groups, asked)
            if not found["named"] and not options.quick:
                found = _blame(folder / "disk", groups, [*asked, "--lever", "disk", "--device", _device(folder)])
    said = f"{' and '.join(found['named']) or 'nobody'} through {found['through'] or 'nothing'}"
    print(f"{guilty}: {said}", flush=True)
    return {"said": said, "is_right": found["named"] == [guilty] and found["through"] in through}


def _blame(record: Path, groups: Mapping[str, str], asked: list[str]) -> dict[str, Any]:
    """Who is named, and what waiting the pulses of the first one shorten most."""
    command = [sys.executable, "-m", "partywall", "blame", *groups.values(), "--out", str(record), "--format", "json"]
    done = subprocess.run([*command, *asked], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1, 3):
        raise SystemExit(f"partywall blame: exit status {done.returncode}: {done.stderr}")
    result, names = json.loads(done.stdout)["result"], {group: name for name, group in groups.items()}
    guilty = [each for each in result["suspects"] if each["state"] == "guilty"]
    waits = guilty[0]["waits"] or [] if guilty else []
    # The longest first.
    return {"named": [names[each["suspect"]] for each in guilty], "through": waits[0]["resource"] if waits else ""}


def _prepare(folder: Path) -> None:
    (folder / "source.c").write_text(SOURCE)
    (folder / "file").write_bytes(os.urandom(1 << 20))
    postgres = folder / "postgres"
    postgres.mkdir()
    shutil.chown(postgres, "postgres", "postgres")
    as_postgres = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    initdb = next(Path("/usr/lib/postgresql").glob("*/bin/initdb"), None)
    if initdb is None:
        raise NotMeasured("it needs PostgreSQL's initdb; run make bench-setup")
    data = str(postgres / "data")
    subprocess.run([*as_postgres, str(initdb), "-D", data, "-A", "trust"], check=True, capture_output=True, cwd="/")
    server = initdb.with_name("pg_ctl")
    where = f"-k {postgres} -c listen_addresses= -c fsync=off"
    argv = [*as_postgres, str(server), "-D", data, "-w", "-l", str(postgres / "log"), "-o", where]
    subprocess.run([*argv, "start"], check=True, capture_output=True, cwd="/")
    try:
        fill = [*as_postgres, "pgbench", "-h", str(postgres), "-i", "-q", "-s", "2", "postgres"]
        subprocess.run(fill, check=True, capture_output=True, cwd="/")
    finally:
        subprocess.run([*argv, "stop"], check=True, capture_output=True, cwd="/")


@contextlib.contextmanager
def _containers(guilty: str, cpus: list[int], folder: Path) -> Iterator[dict[str, str]]:
    """The neighbours, each in a container of its own. Yields their groups by name."""
    label = Label.create(f"bench-{os.getpid()}-{time.monotonic_ns()}", WORK_ROOT)
    try:
        with Session(label) as session:
            every = session.add(*(_settings(name, name == guilty, cpus) for name in NEIGHBOURS))
            for sandbox, neighbour in zip(every, NEIGHBOURS.values(), strict=True):
                command = neighbour.command.format(folder=folder, port=free_port())
                work = {"command": {"argv": ["/bin/sh", "-c", command], "env": {"PATH": _path()}}}
                session.client(neighbour.name).call(
                    "workload.start", id="w", work=work, pace="flat_out", work_dir=sandbox.work_dir
                )
            yield {sandbox.settings.name: str(sandbox.cgroup) for sandbox in every}
            for sender, method, params in session.take(0):
                if method in ("ended", "gone"):
                    raise SystemExit(f"{sender} ended: {shlex.quote(str(params['reason']))}")
    finally:
        reaper.clean(label)


def _settings(name: str, is_guilty: bool, cpus: list[int]) -> Settings:
    on_disk = "a disk" in NEIGHBOURS[name].through
    # A disk's guilty one needs little of a CPU, and none of nginx's.
    cpu = cpus[0] if is_guilty and not on_disk else cpus[1]
    limit = None if is_guilty else LIGHT
    return Settings(name, "container", (cpu,), cpu_limit=limit, command=True, network="host")


def _path() -> str:
    own = (str(path) for path in Path("/usr/lib/postgresql").glob("*/bin"))
    return os.pathsep.join([*own, "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"])


def _device(folder: Path) -> str:
    number = folder.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


if __name__ == "__main__":
    main()
