"""The engine for nodes of a Kubernetes cluster, through the user's own `kubectl`.

A request is `kubectl exec` in a pod on the node. The pod does nothing but keep what requests begin: it is there from
the first request until no run of its own has gone on and nobody has asked for a while, and what it began ends with it.
It is the pod of a Job that is never tried again (`backoffLimit: 0`). Kubernetes may start a pod twice, or none: which
run goes on is said by the ledger on the node's own disk alone, and no object of the cluster is asked for it.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from partywall import __version__
from partywall.errors import Problem, UsageError
from partywall.fleet.engines.calling import TIMEOUT_S, Calling
from partywall.fleet.engines.cluster import HOLD_S, KEEPER, Command, Listed
from partywall.fleet.engines.engine import Unreachable
from partywall.fleet.inventory import Place
from partywall.fleet.ledger.lease import Phase
from partywall.fleet.ledger.look import Look

NAME = "partywall-fleet"
"""The label of our Jobs and pods."""
CONTAINER = "partywall"
NAMESPACE, IMAGE = "partywall", f"partywall:{__version__}"
MADE = "partywall/manifest"
"""The annotation that tells Jobs of another manifest apart."""
BEGINS_S, FETCHED_S = 10.0, 300.0
"""How long one request waits for a pod, and how long it may take: a node may have to fetch its image first."""
LOOK_S, FRESH_S = 0.5, 2.0
"""How often it is looked whether a pod runs, and how old what is known of pods may be."""
ENDS_S = 75
"""How long a pod has to end: a run removes what it made, and writes its results (`keeper.STOP_NS`)."""
FOLDERS = {"data": "/var/lib/partywall", "state": "/run/partywall", "work": "/var/tmp"}  # noqa: S108 - the node's
"""Folders of the node that pods have, by volume: the ledger outlives pods and restarts, and disks are the node's."""
ENVIRONMENT = {"PARTYWALL_FLEET": f"{FOLDERS['data']}/fleet", "PARTYWALL_STATE": FOLDERS["state"]}
UNUSED = ("ansible_become", "ansible_become_user", "ansible_python_interpreter")
"""Variables that are about the node. In its pod, Partywall is root, with the Python of the image."""
ASKED = "/tmp/partywall-asked"  # noqa: S108 - of the container alone
RIGHTS = "see docs/fleet.md for the rights that your account needs"
_LASTING = re.compile(r"Forbidden|NotFound|Invalid|BadRequest|logged in|no such host|does not exist")
_ENDED = re.compile(r"command terminated with exit code \d+|Defaulted container .*")
_OWN = re.compile(r"error: |Error from server|Unable to connect|The connection to the server|E\d{4} ")
# Why a container cannot start, however long one waits. A registry may answer later.
_NEVER = ("ErrImageNeverPull", "InvalidImageName")
# The container. Arguments: the ledger's folder, the seconds that it stays without a run, the folder of states, the time
# to end. Only its own run keeps it, and only its own run is ended: another pod may be there. A run that is ended holds
# the lock of measurements until it has restored the node. The file keeps others from removing the mounted folder.
_STAYS = f"""\
ends= idle=0
trap 'ends=1' TERM
run() {{ sh -c "$keeper" sh "$1" "" "$2" "PARTYWALL_POD=$PARTYWALL_POD"; }}
mkdir -p "$3" && : > "$3/pod-$PARTYWALL_POD"
while [ -z "$ends" ] && [ "$idle" -lt "$2" ]; do
  sleep 5 & wait $!
  idle=$((idle + 5))
  [ -e {ASKED} ] && rm {ASKED} && idle=0
  run "$1" "" && idle=0
done
run "$1" TERM && flock -w "$4" "$3" true
rm -f "$3/pod-$PARTYWALL_POD"
exit 0
"""
_ASK = f': > {ASKED} && exec "$@"'


@dataclass(frozen=True)
class Pod:
    """A pod of ours. why: it does not run, in Kubernetes' words. made: its manifest. owner: the UID of its Job.

    limit: of its CPU time; empty for none. has_run: whether a container of it ever started.
    """

    name: str
    node: str
    phase: str
    why: str
    made: str
    owner: str
    limit: str
    is_leaving: bool
    has_run: bool

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> Pod:
        """Of an item of a list of pods."""
        status, metadata = item.get("status", {}), item["metadata"]
        states = [each.get("state", {}) for each in status.get("containerStatuses", [])]
        of_container = [about for state in states for about in state.values() if about and about.get("reason")]
        about = status if status.get("reason") else next(iter(of_container), {})
        limits = [each.get("resources", {}).get("limits", {}) for each in item["spec"].get("containers", [])]
        return cls(
            name=metadata["name"],
            node=item["spec"].get("nodeName", ""),
            phase=status.get("phase", ""),
            why=": ".join(filter(None, (about.get("reason", ""), about.get("message", "")))),
            made=metadata.get("annotations", {}).get(MADE, ""),
            owner=next((each.get("uid", "") for each in metadata.get("ownerReferences", [])), ""),
            limit=next((each["cpu"] for each in limits if "cpu" in each), ""),
            is_leaving="deletionTimestamp" in metadata,
            has_run=any("running" in state or "terminated" in state for state in states),
        )

    @property
    def runs(self) -> bool:
        return self.phase == "Running" and not self.is_leaving

    @property
    def waits(self) -> bool:
        return self.phase == "Pending" and not self.is_leaving


class Kubernetes(Calling):
    """Nodes of a cluster, by their names or `kubernetes_node`. `kubernetes_args` are options of kubectl."""

    OWN_WORDS = _ENDED

    def __init__(self, places: Sequence[Place]) -> None:
        super().__init__([_of_pod(place) for place in places])
        first = _kubectl(places[0]) if places else ["kubectl"]
        self._command = Command("kubectl", f"{shlex.join(first)} get nodes", _LASTING, self.environment())
        self._listed = {_where(place): Listed(functools.partial(self._list, place), FRESH_S) for place in places}
        self._jobs = {place.name: manifest(place) for place in places}
        self._ended: dict[str, str] = {}

    def fetch(self, host: str, run: str, since: Mapping[str, int]) -> Look:
        look = super().fetch(host, run, since)
        if look.state.phase is Phase.DIED:
            self._listed[_where(self._places[host])].forget()
            ended = self._why(self._pods(host)) or self._ended.get(host)
            if not ended:
                return look
            why = f"{look.state.why}; Kubernetes ended a pod on its node ({ended})"
            return dataclasses.replace(look, state=dataclasses.replace(look.state, why=why))
        return look

    def argv(
        self, place: Place, words: Sequence[str], *, begins: bool = False, seconds: float = TIMEOUT_S
    ) -> list[str]:
        """A command in a pod on the node, which is started if there is none."""
        del begins, seconds
        through = ["exec", f"--namespace={_namespace(place)}", "--stdin", self._pod(place).name]
        return [*_kubectl(place), *through, f"--container={CONTAINER}", "--", "sh", "-c", _ASK, "sh", *words]

    def explained(self, place: Place, said: str, code: int) -> str:
        last = said.rpartition("\n")[2]
        if _OWN.match(last):
            remedy = RIGHTS if "Forbidden" in last else f"look at: {self._pods_of(place)}"
            return f"Kubernetes: {last.removeprefix('error: ')}; {remedy}"
        return super().explained(place, said, code)

    def lasts(self, done: subprocess.CompletedProcess[bytes]) -> bool:
        """What Kubernetes itself could not do now, it may do later, unless it was not allowed."""
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return "Forbidden" in last if _OWN.match(last) else super().lasts(done)

    def _done(
        self, place: Place, words: Sequence[str], given: bytes, *, begins: bool = False
    ) -> subprocess.CompletedProcess[bytes]:
        done = super()._done(place, words, given, begins=begins)
        if done.returncode != 0:
            # Its pod may have ended.
            self._listed[_where(place)].forget()
        return done

    def _pod(self, place: Place) -> Pod:
        """A pod that runs on the node. Starts one if there is none, and waits for it for a while."""
        until, owner = time.monotonic() + BEGINS_S, ""
        made = self._jobs[place.name]["spec"]["template"]["metadata"]["annotations"][MADE]
        while True:
            is_last = time.monotonic() > until
            pods = self._pods(place.name)
            if running := next((pod for pod in pods if pod.runs), None):
                self._require_whole(place, running)
                return running
            waiting = next((pod for pod in pods if pod.waits and pod.made == made), None)
            if waiting is not None and waiting.why.startswith(_NEVER):
                remedy = "set kubernetes_image to an image that the node can get"
                self._refuse(place, f"its pod {waiting.name} cannot start ({waiting.why}); {remedy}")
            if refused := next((each for each in pods if owner and owner == each.owner and _is_refused(each)), None):
                self._refuse(place, f"the node refused its pod ({refused.why or refused.phase})")
            if waiting is None and not owner:
                owner = self._started(place, pods, made)
            if is_last:
                state = f"waits ({waiting.why or waiting.phase})" if waiting else "was not made; a policy may refuse it"
                raise Unreachable(
                    f"{place.name}: its pod {state}; look at: {shlex.join(_kubectl(place))} "
                    f"--namespace={_namespace(place)} describe job {_job(place)}",
                    within_s=FETCHED_S,
                )
            time.sleep(LOOK_S)

    def _require_whole(self, place: Place, pod: Pod) -> None:
        """Unreachable if the cluster gave a pod a limit that nobody asked for: it would be one of what is measured."""
        (container,) = self._jobs[place.name]["spec"]["template"]["spec"]["containers"]
        if pod.limit and "cpu" not in container.get("resources", {}).get("limits", {}):
            remedy = "a LimitRange of the namespace may do so; use another namespace"
            self._refuse(place, f"its pod {pod.name} got a limit of {pod.limit} CPUs; {remedy}")

    @staticmethod
    def _refuse(place: Place, why: str) -> None:
        raise Unreachable(f"{place.name}: {why}", is_lasting=True)

    def _started(self, place: Place, pods: Sequence[Pod], made: str) -> str:
        """Makes the Job of a node. Returns its UID; empty if an earlier one has to go first."""
        kubectl, job = _kubectl(place), f"{_jobs(place)}/{_job(place)}"
        self._listed[_where(place)].forget()
        self._require_node(place)
        try:
            given = json.dumps(self._jobs[place.name]).encode()
            created = self._asked(place, [*kubectl, "create", f"--raw={_jobs(place)}", "--filename=-"], given)
            return str(json.loads(created)["metadata"].get("uid", ""))
        except Unreachable as error:
            if "AlreadyExists" not in str(error):
                raise
        try:
            known = json.loads(self._asked(place, [*kubectl, "get", f"--raw={job}"]))
            is_over = any(
                each["type"] in ("Complete", "Failed") and each["status"] == "True"
                for each in known.get("status", {}).get("conditions", [])
            )
            is_other = known["metadata"].get("annotations", {}).get(MADE) != made
            if is_over or (is_other and not any(pod.runs for pod in self._pods(place.name))):
                self._ended[place.name] = self._why(pods) or self._ended.get(place.name, "")
                # This one alone: another controller may have made a new one meanwhile.
                options = {"propagationPolicy": "Background", "preconditions": {"uid": known["metadata"]["uid"]}}
                given = json.dumps({"kind": "DeleteOptions", "apiVersion": "batch/v1"} | options).encode()
                self._asked(place, [*kubectl, "delete", f"--raw={job}", "--filename=-"], given)
        except Unreachable as error:
            if not re.search("NotFound|Conflict", str(error)):
                raise
        return ""

    @staticmethod
    def _why(pods: Sequence[Pod]) -> str:
        """Why the last pod that failed did so."""
        return next((pod.why for pod in reversed(pods) if pod.phase == "Failed" and pod.why), "")

    def _require_node(self, place: Place) -> None:
        """Unreachable if there is no such node, for which a pod would wait for ever. Some may not ask for nodes."""
        try:
            self._asked(place, [*_kubectl(place), "get", f"--raw=/api/v1/nodes/{quote(_node(place))}"])
        except Unreachable as error:
            if "NotFound" in str(error):
                remedy = "set kubernetes_node, or the context with kubernetes_args"
                self._refuse(place, f"the cluster has no node {_node(place)}; {remedy}")
            if "Forbidden" not in str(error):
                raise

    def _pods(self, host: str) -> tuple[Pod, ...]:
        """Our pods on a node, oldest first."""
        place = self._places[host]
        try:
            every = self._listed[_where(place)].now()
        except Unreachable as error:
            raise _about(place, error) from None
        return tuple(pod for pod in every if pod.node == _node(place))

    def _list(self, place: Place) -> tuple[Pod, ...]:
        where = f"/api/v1/namespaces/{_namespace(place)}/pods?labelSelector={quote(f'app.kubernetes.io/name={NAME}')}"
        said = json.loads(self._command.called([*_kubectl(place), "get", f"--raw={where}"]))
        items = sorted(said["items"], key=lambda item: item["metadata"].get("creationTimestamp", ""))
        return tuple(Pod.of(item) for item in items)

    def _asked(self, place: Place, argv: Sequence[str], given: bytes = b"") -> bytes:
        try:
            return self._command.called(argv, given)
        except Unreachable as error:
            raise _about(place, error) from None

    def _pods_of(self, place: Place) -> str:
        return f"{shlex.join(_kubectl(place))} --namespace={_namespace(place)} get pods --output=wide"


def _about(place: Place, error: Unreachable) -> Unreachable:
    """The same error with its host, and what to do about it."""
    said = str(error)
    remedy = f"; {RIGHTS}" if "Forbidden" in said else ""
    if "NotFound" in said and "namespaces" in said:
        remedy = f"; {shlex.join(_kubectl(place))} create namespace {_namespace(place)} (docs/fleet.md)"
    return Unreachable(f"{place.name}: {said}{remedy}", is_lasting=error.is_lasting)


def _is_refused(pod: Pod) -> bool:
    """Whether a kubelet did not take a pod in: a pod that names its node is not asked whether it fits."""
    return pod.phase == "Failed" and not pod.has_run and not pod.why.startswith(("Evicted", "Preempt"))


def _of_pod(place: Place) -> Place:
    """A host as its pod is: what is said of the node's own users and Python is left out."""
    kept = {name: value for name, value in place.variables.items() if name not in UNUSED}
    return dataclasses.replace(place, variables=kept)


def manifest(place: Place) -> dict[str, Any]:
    """The Job of a node, with what the inventory changes of it. UsageError if that cannot be."""
    variables = place.variables
    ledger = variables.get("partywall_ledger") or ENVIRONMENT["PARTYWALL_FLEET"]
    state = variables.get("partywall_state") or ENVIRONMENT["PARTYWALL_STATE"]
    environment = {"keeper": KEEPER, "PARTYWALL_FLEET": ledger, "PARTYWALL_STATE": state}
    folders = FOLDERS | dict(_others({"ledger": ledger, "states": state}))
    labels, about = {"app.kubernetes.io/name": NAME}, {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    container = {
        "name": CONTAINER,
        "image": variables.get("kubernetes_image") or IMAGE,
        "command": ["sh", "-c", _STAYS, "sh", ledger, str(HOLD_S), state, str(ENDS_S - 10)],
        "env": [
            *({"name": name, "value": value} for name, value in environment.items()),
            {"name": "PARTYWALL_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        # No limit, because a limit on it is a limit on what is measured.
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "securityContext": {"privileged": True, "runAsUser": 0},
        "volumeMounts": [
            *({"name": name, "mountPath": path} for name, path in folders.items()),
            {"name": "cgroup", "mountPath": "/sys/fs/cgroup"},
        ],
    }
    volumes = [
        *({"name": name, "hostPath": {"path": at, "type": "DirectoryOrCreate"}} for name, at in folders.items()),
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
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": _job(place), "namespace": _namespace(place), "labels": labels, "annotations": {}},
        "spec": {
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "ttlSecondsAfterFinished": 600,
            "template": {"metadata": {"labels": labels, "annotations": about}, "spec": pod},
        },
    }
    patched: dict[str, Any] = _merged(job, _patch(place))
    if changed := sorted(_lost(job, patched)):
        said = f"{variables['kubernetes_patch']}: it changes {', '.join(changed)}, which the ledger rests on"
        raise UsageError(Problem(said, "leave that as it is"))
    made = hashlib.sha256(json.dumps(patched, sort_keys=True).encode()).hexdigest()[:16]
    for metadata in (patched["metadata"], patched["spec"]["template"]["metadata"]):
        metadata["annotations"] = {**metadata.get("annotations", {}), MADE: made}
    return patched


def _others(folders: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Folders that would lie in the pod alone, and be lost with it."""
    for name, path in folders.items():
        if not any(PurePosixPath(path).is_relative_to(shared) for shared in FOLDERS.values()):
            yield name, path


def _lost(job: Mapping[str, Any], patched: Mapping[str, Any]) -> Iterator[str]:
    """What a patch took away that a run needs to be known by every pod of its node."""

    def pod(of: Mapping[str, Any]) -> Any:
        return of.get("spec", {}).get("template", {}).get("spec", {})

    for key in ("name", "namespace"):
        if patched.get("metadata", {}).get(key) != job["metadata"][key]:
            yield f"metadata.{key}"
    for key in ("nodeName", "hostPID", "restartPolicy"):
        if pod(patched).get(key) != pod(job)[key]:
            yield f"spec.template.spec.{key}"
    labels = patched.get("spec", {}).get("template", {}).get("metadata", {}).get("labels", {})
    if labels.get("app.kubernetes.io/name") != NAME:
        yield "spec.template.metadata.labels"
    containers = pod(patched).get("containers", [])
    if [each.get("name") for each in containers] != [CONTAINER]:
        yield "spec.template.spec.containers"
        return
    for key, of in (("volumes", pod), ("volumeMounts", lambda each: pod(each)["containers"][0])):
        there = of(patched).get(key, [])
        if any(each not in there for each in of(job)[key]):
            yield key


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
