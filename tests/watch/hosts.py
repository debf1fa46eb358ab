"""A host of files, whose groups wait and use: what the watch of stalls is tried on."""

from pathlib import Path

CGROUP = "sys/fs/cgroup"
S = 10**9


class Tree:
    """A host below a folder. is_v2: version 2 of cgroups only; else version 1 beside an empty version 2."""

    def __init__(self, root: Path, *, is_v2: bool = True, psi: bool = True):
        self.root, self.is_v2, self.psi = root, is_v2, psi
        self.busy_ticks = self.scanned = 0
        self.waited = {"cpu": 0, "memory": 0, "io": 0}
        top = f"/{CGROUP}"
        mounts = [(top, "cgroup2", "rw")] if is_v2 else [
            *((f"{top}/{name}", "cgroup", f"rw,{name}") for name in ("cpu", "cpuacct", "memory", "blkio")),
            (f"{top}/unified", "cgroup2", "rw"),
        ]  # fmt: skip
        rows = [
            f"{n} 1 0:{n} / {place} rw - {kind} {kind} {options}" for n, (place, kind, options) in enumerate(mounts)
        ]
        self.write("proc/self/mountinfo", "\n".join(rows) + "\n")
        self.write("proc/self/schedstat", "1 2 3\n")
        self.write("sys/devices/system/cpu/online", "0-3\n")
        for place, kind, _ in mounts:
            self.write(f"{place[1:]}/cgroup.procs", "")
            if kind == "cgroup2":
                self.write(f"{place[1:]}/cgroup.controllers", "cpu cpuset io memory\n" if is_v2 else "")
        self.host()

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        # In place, as the kernel's files: the watch keeps them open.
        file.write_text(text)

    def host(self, *, busy_s: float = 0, scanned: int = 0, **waited_s: float) -> None:
        """Adds to what the whole host did and waited for."""
        self.busy_ticks += round(100 * busy_s)
        self.scanned += scanned
        self.write("proc/stat", f"cpu  {self.busy_ticks} 0 0 0 0 0 0 0 0 0\n")
        self.write("proc/vmstat", f"allocstall_normal 0\npgmajfault 0\npgscan_kswapd {self.scanned}\npgscan_direct 0\n")
        self.write("proc/net/softnet_stat", "00000001 00000002 00000003\n")
        for name, value in waited_s.items():
            self.waited[name] += round(1e6 * value)
        for name, value in self.waited.items():
            if self.psi:
                self.write(f"proc/pressure/{name}", pressure(value, 0))

    def group(
        self, path: str, *, used_s=0.0, cpu=(0.0, 0.0), own_s=0.0, memory_s=0.0, taken=0, hits=0, io_s=0.0, disk=0
    ):
        """States the counters of a group. cpu: waits of some and of all tasks. disk: bytes on one."""
        tops = {name: f"{CGROUP}/{name}/{path}" for name in ("cpu", "cpuacct", "memory", "blkio", "unified")}
        if self.is_v2:
            tops = dict.fromkeys(tops, f"{CGROUP}/{path}")
            stat = f"usage_usec {round(used_s * 1e6)}\nnr_throttled 0\nthrottled_usec {round(own_s * 1e6)}\n"
            self.write(f"{tops['memory']}/memory.current", f"{taken}\n")
            self.write(f"{tops['memory']}/memory.stat", "anon 0\npgsteal 0\n")
            self.write(f"{tops['memory']}/memory.events", f"low 0\nhigh 0\nmax {hits}\noom 0\n")
            self.write(f"{tops['blkio']}/io.stat", f"8:0 rbytes={disk} wbytes=0 rios=0 wios=0\n")
        else:
            stat = f"nr_periods 0\nnr_throttled 0\nthrottled_time {round(own_s * S)}\n"
            self.write(f"{tops['cpuacct']}/cpuacct.usage", f"{round(used_s * S)}\n")
            self.write(f"{tops['memory']}/memory.stat", f"cache 0\ntotal_pgpgin {taken // 4096}\n")
            self.write(f"{tops['memory']}/memory.failcnt", f"{hits}\n")
        self.write(f"{tops['cpu']}/cpu.stat", stat)
        for top in set(tops.values()):
            if not (self.root / top / "cgroup.procs").exists():
                self.write(f"{top}/cgroup.procs", "")
        if self.psi:
            self.write(f"{tops['unified']}/cpu.pressure", pressure(*(round(1e6 * each) for each in cpu)))
            self.write(f"{tops['unified']}/memory.pressure", pressure(round(1e6 * memory_s), 0))
            self.write(f"{tops['unified']}/io.pressure", pressure(round(1e6 * io_s), 0))


def pressure(some: int, full: int) -> str:
    averages = "avg10=0.00 avg60=0.00 avg300=0.00"
    return f"some {averages} total={some}\nfull {averages} total={full}\n"
