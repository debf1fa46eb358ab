"""The engine for nodes of a Kubernetes cluster, through the user's own `kubectl`.

A request is `kubectl exec` in a pod on the node. The pod does nothing but keep what requests begin: it is there from
the first request until no run has gone on and nobody has asked for a while, and what it began ends with it. It is the
pod of a Job that is never tried again (`backoffLimit: 0`). Kubernetes may start a pod twice, or none: which run goes on
is said by the ledger on the node's own disk alone, so that the pods of a node are all the same, and no object of the
cluster is asked for a run.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from partywall import __version__
from partywall.errors import Problem, UsageError
from partywall.fleet.engines.calling import Calling
from partywall.fleet.engines.cluster import HOLD_S, KEEPER, Command, Listed
from partywall.fleet.engines.engine import Unreachable
from partywall.fleet.inventory import Place
from partywall.fleet.ledger.lease import Phase
from partywall.fleet.ledger.look import Look

NAME = "partywall-fleet"
"""The name of the container, and the label of its pod and Job."""
CONTAINER = "partywall"
NAMESPACE, IMAGE = "partywall", f"partywall:{__version__}"
BEGINS_S, FETCHED_S = 10.0, 300.0
"""How long one request waits for a pod, and how long it may take: a node may have to fetch its image first."""
LOOK_S = 0.5
ENDS_S = 75
"""How long a pod has to end: a run removes what it made, and writes its results (`keeper.STOP_NS`)."""
FOLDERS = {"data": "/var/lib/partywall", "state": "/run/partywall"}
"""Folders of the node that pods have, by the name of the volume. A ledger must outlive pods and restarts."""
ENVIRONMENT = {"PARTYWALL_FLEET": f"{FOLDERS['data']}/fleet", "PARTYWALL_STATE": FOLDERS["state"]}
ASKED = "/tmp/partywall-asked"  # noqa: S108 - of the container alone
_LASTING = re.compile(
    r"Forbidden|Unauthorized|NotFound|Invalid|BadRequest|logged in|no such host|does not exist|context"
)
# What kubectl says of a command that it has carried out, and that failed.
_ENDED = re.compile(r"command terminated with exit code \d+|Defaulted container .*")
_OWN = re.compile(r"error: |Error from server|Unable to connect|The connection to the server|E\d{4} ")
# Why a container cannot start, however long one waits.
_NEVER = ("ErrImageNeverPull", "InvalidImageName", "ImagePullBackOff", "ErrImagePull", "CreateContainerConfigError")
# The container. Arguments: the ledger's folder, the seconds that it stays without a run, the folder of states, the time
# to end. A run that is ended with it holds the lock of measurements until it has restored the node.
_STAYS = f"""\
ends= idle=0
trap 'ends=1' TERM
run() {{ sh -c "$keeper" sh "$1" "" "$2"; }}
while [ -z "$ends" ] && [ "$idle" -lt "$2" ]; do
  sleep 1 & wait $!
  idle=$((idle + 1))
  [ -e {ASKED} ] && rm {ASKED} && idle=0
  [ $((idle % 5)) = 4 ] && run "$1" "" && idle=0
done
run "$1" TERM && flock -w "$4" "$3" true
"""
_ASK = f': > {ASKED} && exec "$@"'


@dataclass(frozen=True)
class Pod:
    """A pod of ours. why: it does not run, in Kubernetes' words."""

    name: str
    node: str
    phase: str
    why: str
    is_leaving: bool

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Pod:
        """Of an item of a list of pods."""
        status: Mapping[str, Any] = item.get("status", {})
        states = [each.get("state", {}) for each in status.get("containerStatuses", [])]
        reasons = [about.get("reason", "") for state in states for about in state.values() if about]
        why = status.get("reason") or next((reason for reason in reasons if reason), "")
        said = status.get("message", "")
        metadata = item["metadata"]
        return cls(
            metadata["name"], item["spec"].get("nodeName", ""), status.get("phase", ""),
            f"{why}: {said}" if why and said else why, "deletionTimestamp" in metadata,
        )  # fmt: skip

    @property
    def runs(self) -> bool:
        return self.phase == "Running" and not self.is_leaving

    @property
    def waits(self) -> bool:
        return self.phase == "Pending" and not self.is_leaving


class Kubernetes(Calling):
    """Nodes of a cluster, by their names or `kubernetes_node`. `kubernetes_args` are options of kubectl."""

    def __init__(self, places: Sequence[Place]) -> None:
        super().__init__(places)
        self._command = Command(
            "kubectl", f"{shlex.join(_kubectl(places[0]) if places else ['kubectl'])} get nodes", _LASTING,
            self.environment(),
        )  # fmt: skip
        self._listed = {_where(place): Listed(functools.partial(self._list, place)) for place in places}
        self._jobs = {place.name: manifest(place) for place in places}

    def fetch(self, host: str, run: str, since: Mapping[str, int]) -> Look:
        look = super().fetch(host, run, since)
        if look.state.phase is not Phase.DIED:
            return look
        ended = next((pod for pod in reversed(self._pods(host)) if pod.phase == "Failed" and pod.why), None)
        why = f"{look.state.why}; Kubernetes ended a pod on its node ({ended.why})" if ended else look.state.why
        return dataclasses.replace(look, state=dataclasses.replace(look.state, why=why))

    def argv(self, place: Place, words: Sequence[str], *, begins: bool = False) -> list[str]:
        """A command in a pod on the node, which is started if there is none."""
        del begins
        through = ["exec", f"--namespace={_namespace(place)}", "--stdin", self._pod(place).name]
        return [*_kubectl(place), *through, f"--container={CONTAINER}", "--", "sh", "-c", _ASK, "sh", *words]

    def explained(self, place: Place, said: str, code: int) -> str:
        last = said.rpartition("\n")[2]
        if _OWN.match(last):
            return f"Kubernetes: {last.removeprefix('error: ')}; look at: {self._pods_of(place)}"
        return super().explained(place, said, code)

    def lasts(self, done: subprocess.CompletedProcess[bytes]) -> bool:
        """What Kubernetes itself could not do now, it may do later, unless it was not allowed."""
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        if _OWN.match(last):
            return bool(re.search(r"Forbidden|Unauthorized", last))
        return super().lasts(done)

    def _done(
        self, place: Place, words: Sequence[str], given: bytes, *, begins: bool = False
    ) -> subprocess.CompletedProcess[bytes]:
        done = super()._done(place, words, given, begins=begins)
        lines = done.stderr.decode(errors="replace").split("\n")
        done.stderr = "\n".join(line for line in lines if not _ENDED.match(line)).encode()
        if done.returncode != 0:
            # Its pod may have ended.
            self._listed[_where(place)].forget()
        return done

    def _pod(self, place: Place) -> Pod:
        """A pod that runs on the node. Starts one if there is none, and waits for it for a while."""
        until, has_started = time.monotonic() + BEGINS_S, False
        while True:
            pods = self._pods(place.name)
            if running := next((pod for pod in pods if pod.runs), None):
                return running
            waiting = next((pod for pod in pods if pod.waits), None)
            if waiting is not None and waiting.why.startswith(_NEVER):
                raise Unreachable(
                    f"{place.name}: its pod {waiting.name} cannot start ({waiting.why}); set kubernetes_image to an "
                    "image that the node can get",
                    is_lasting=True,
                )
            if waiting is None and not has_started:
                has_started = self._start(place)
            if time.monotonic() > until:
                state = f"waits ({waiting.why or waiting.phase})" if waiting else "is not there"
                raise Unreachable(
                    f"{place.name}: its pod {state}; look at: {shlex.join(_kubectl(place))} "
                    f"--namespace={_namespace(place)} describe job {_job(place)}",
                    within_s=FETCHED_S,
                )
            time.sleep(LOOK_S)

    def _start(self, place: Place) -> bool:
        """Makes the Job of a node. False if an earlier one has to go first."""
        kubectl, job = _kubectl(place), f"{_jobs(place)}/{_job(place)}"
        self._listed[_where(place)].forget()
        self._require_node(place)
        try:
            given = json.dumps(self._jobs[place.name]).encode()
            self._command.called([*kubectl, "create", f"--raw={_jobs(place)}", "--filename=-"], given)
        except Unreachable as error:
            if "AlreadyExists" not in str(error):
                lacks = "namespaces" in str(error) and "NotFound" in str(error)
                remedy = f"; {shlex.join(kubectl)} create namespace {_namespace(place)}" if lacks else ""
                raise Unreachable(f"{place.name}: {error}{remedy}", is_lasting=error.is_lasting) from None
        else:
            return True
        try:
            known = json.loads(self._command.called([*kubectl, "get", f"--raw={job}"]))
            if not any(
                each["type"] in ("Complete", "Failed") and each["status"] == "True"
                for each in known.get("status", {}).get("conditions", [])
            ):
                # Of another controller, or its pod is about to be made or to leave.
                return False
            self._command.called([*kubectl, "delete", f"--raw={job}?propagationPolicy=Background"])
        except Unreachable as error:
            if "NotFound" not in str(error):
                raise
        return False

    def _require_node(self, place: Place) -> None:
        """Unreachable if there is no such node, for which a pod would wait for ever. Some may not ask for nodes."""
        try:
            self._command.called([*_kubectl(place), "get", f"--raw=/api/v1/nodes/{quote(_node(place))}"])
        except Unreachable as error:
            if "NotFound" in str(error):
                raise Unreachable(
                    f"{place.name}: the cluster has no node {_node(place)}; set kubernetes_node, or the context with "
                    "kubernetes_args",
                    is_lasting=True,
                ) from None
            if "Forbidden" not in str(error):
                raise

    def _pods(self, host: str) -> tuple[Pod, ...]:
        """Our pods on a node, oldest first."""
        place = self._places[host]
        return tuple(pod for pod in self._listed[_where(place)].now() if pod.node == _node(place))

    def _list(self, place: Place) -> tuple[Pod, ...]:
        where = f"/api/v1/namespaces/{_namespace(place)}/pods?labelSelector={quote(f'app.kubernetes.io/name={NAME}')}"
        said = json.loads(self._command.called([*_kubectl(place), "get", f"--raw={where}"]))
        items = sorted(said["items"], key=lambda item: item["metadata"].get("creationTimestamp", ""))
        return tuple(Pod.of(item) for item in items)

    def _pods_of(self, place: Place) -> str:
        return f"{shlex.join(_kubectl(place))} --namespace={_namespace(place)} get pods --output=wide"


def manifest(place: Place) -> dict[str, Any]:
    """The Job of a node, with what the inventory changes of it. UsageError if that cannot be read."""
    variables = place.variables
    ledger = variables.get("partywall_ledger") or ENVIRONMENT["PARTYWALL_FLEET"]
    state = variables.get("partywall_state") or ENVIRONMENT["PARTYWALL_STATE"]
    environment = {**ENVIRONMENT, "keeper": KEEPER, "PARTYWALL_FLEET": ledger, "PARTYWALL_STATE": state}
    labels = {"app.kubernetes.io/name": NAME}
    container = {
        "name": CONTAINER,
        "image": variables.get("kubernetes_image") or IMAGE,
        "command": ["sh", "-c", _STAYS, "sh", ledger, str(HOLD_S), state, str(ENDS_S - 10)],
        "env": [{"name": name, "value": value} for name, value in environment.items()],
        # No limit, because a limit on it is a limit on what is measured.
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "securityContext": {"privileged": True},
        "volumeMounts": [
            *({"name": name, "mountPath": path} for name, path in FOLDERS.items()),
            {"name": "cgroup", "mountPath": "/sys/fs/cgroup"},
        ],
    }
    volumes = [
        *({"name": name, "hostPath": {"path": at, "type": "DirectoryOrCreate"}} for name, at in FOLDERS.items()),
        {"name": "cgroup", "hostPath": {"path": "/sys/fs/cgroup", "type": "Directory"}},
    ]
    pod = {
        "nodeName": _node(place),
        "restartPolicy": "Never",
        # A ledger knows a run by its process, and another pod must see the same one.
        "hostPID": True,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": ENDS_S,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": volumes,
    }
    about = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": _job(place), "namespace": _namespace(place), "labels": labels},
        "spec": {
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "ttlSecondsAfterFinished": 600,
            "template": {"metadata": {"labels": labels, "annotations": about}, "spec": pod},
        },
    }
    patched: dict[str, Any] = _merged(job, _patch(place))
    return patched


def _patch(place: Place) -> Any:
    """What the inventory changes of a Job. UsageError with the file if it cannot be read."""
    if not (path := place.variables.get("kubernetes_patch")):
        return {}
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(Problem(f"{path}: {error.strerror}", "set kubernetes_patch to a JSON file")) from None
    except ValueError as error:
        raise UsageError(Problem(f"{path}: {error}", "write a JSON merge patch of a Job")) from None
    if not isinstance(content, dict):
        raise UsageError(Problem(f"{path}: it is not a mapping", "write a JSON merge patch of a Job"))
    return content


def _merged(value: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386). The one container is a mapping in it too, and null removes a key."""
    if isinstance(value, list) and len(value) == 1 and isinstance(patch, Mapping):
        return [_merged(value[0], patch)]
    if not isinstance(value, dict) or not isinstance(patch, Mapping):
        return patch
    merged = {key: _merged(value.get(key), given) if key in value else given for key, given in patch.items()}
    return {key: content for key, content in {**value, **merged}.items() if content is not None}


def _kubectl(place: Place) -> list[str]:
    return ["kubectl", *shlex.split(place.variables.get("kubernetes_args", ""))]


def _namespace(place: Place) -> str:
    return place.variables.get("kubernetes_namespace") or NAMESPACE


def _where(place: Place) -> tuple[str, str]:
    return place.variables.get("kubernetes_args", ""), _namespace(place)


def _node(place: Place) -> str:
    return place.variables.get("kubernetes_node") or place.name


def _jobs(place: Place) -> str:
    return f"/apis/batch/v1/namespaces/{_namespace(place)}/jobs"


def _job(place: Place) -> str:
    """The name of the Job of a node: one at a time. A name has at most 63 characters, and a node's may have 253."""
    node = _node(place)
    return f"{NAME}-{re.sub(r'[^a-z0-9-]', '-', node.lower())[:36]}-{hashlib.sha256(node.encode()).hexdigest()[:8]}"
