"""A real Slurm whose nodes are all this host: a controller and a daemon for each node, with their own configuration."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "slurmstepd", "srun", "sbatch", "squeue", "scancel", "scontrol")
CONFIGURATION = """\
ClusterName=partywall-test
SlurmctldHost={name}(127.0.0.1)
SlurmUser=root
AuthType=auth/none
CredType=cred/none
SlurmctldPort={controller}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
ReturnToService=2
JobRequeue=0
{nodes}
PartitionName=all Nodes=ALL Default=YES OverSubscribe=EXCLUSIVE MaxTime=INFINITE State=UP
"""


def _where(program):
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def lacking():
    """What keeps such a cluster from running here, if anything does."""
    tools = [program for program in PROGRAMS if program != "slurmstepd" and not _where(program)]
    return f"{', '.join(tools)} not installed" if tools else "" if os.geteuid() == 0 else "not root"


NODE = "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} State=UNKNOWN"


def _free_ports(count):
    """As many ports, all different: each stays taken until the last one is found."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class SlurmCluster:
    """Ends with `stop`. configuration: for $SLURM_CONF. nodes: the cgroup in which each works, if any.

    daemons: the process of each node.
    """

    def __init__(self, folder, nodes=None):
        nodes = nodes or {"there": None}
        self.folder = Path(folder)
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        self.configuration = self.folder / "slurm.conf"
        host, cpus = socket.gethostname().partition(".")[0], os.cpu_count()
        own, *ports = _free_ports(1 + len(nodes))
        each = zip(nodes, ports, strict=True)
        lines = [NODE.format(name=name, host=host, port=port, cpus=cpus) for name, port in each]
        about = {"folder": self.folder, "name": host, "controller": own, "nodes": "\n".join(lines)}
        self.configuration.write_text(CONFIGURATION.format(**about))
        self._environment = os.environ | {"SLURM_CONF": str(self.configuration)}
        self._logs, self._processes = [], []
        try:
            self._controller = self._start("slurmctld", "-D", "-c")
            self.daemons = {
                name: self._start("slurmd", "-D", "-N", name, group=group, log=f"slurmd-{name}")
                for name, group in nodes.items()
            }
            self.wait_for("sinfo", "--noheader", "--format=%T %D", until=f"idle {len(nodes)}")
        except BaseException:
            self.stop()
            raise

    def _start(self, program, *arguments, group=None, log=""):
        self._logs.append((self.folder / f"{log or program}.log").open("wb"))
        log = self._logs[-1]
        joins = ["sh", "-c", 'echo $$ > "$0/cgroup.procs"; exec "$@"', str(group)] if group else []
        argv = [*joins, _where(program), "-f", str(self.configuration), *arguments]
        process = subprocess.Popen(argv, env=self._environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self._processes.append(process)
        return process

    def crash(self):
        """The controller is killed, and starts again with what it had written."""
        self._controller.kill()
        self._controller.wait()
        self._processes.remove(self._controller)
        self._controller = self._start("slurmctld", "-D")

    def wait_for(self, *argv, until):
        deadline = time.monotonic() + 60
        while (said := self._said(*argv)) != until:
            told = "".join(path.read_text(errors="replace")[-1500:] for path in self.folder.glob("*.log"))
            assert time.monotonic() < deadline, f"{argv[0]}: {said}\n{told}"
            assert all(process.poll() is None for process in self._processes), told
            time.sleep(0.1)

    def _said(self, *argv):
        done = subprocess.run(argv, env=self._environment, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    def run(self, *argv, script=""):
        """Runs a command of Slurm, and returns what it said."""
        done = subprocess.run(
            argv, env=self._environment, input=script, capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout.strip()

    def cancel_all(self):
        self._said("scancel", "--me", "--signal=KILL", "--full")
        self._said("scancel", "--me")
        self.wait_for("squeue", "--noheader", until="")

    def stop(self):
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for log in self._logs:
            log.close()
