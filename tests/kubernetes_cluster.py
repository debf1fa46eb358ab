"""A double of Kubernetes' API whose nodes are all this host. kubectl is real; etcd and kubelet are not.

Its pods are processes here. It can start each pod twice, evict pods, keep them from starting, and stop answering.
"""

import asyncio
import contextlib
import itertools
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocketDisconnect

from partywall.host import free_port

OLDEST = (1, 31)
"""The first kubectl that speaks WebSockets; earlier ones speak SPDY, which this double does not."""
MARK = "PARTYWALL_TEST_POD"
CORE, BATCH = "/api/v1", "/apis/batch/v1"


def lacking():
    """What keeps such a cluster from running here, if anything does."""
    if not shutil.which("kubectl"):
        return "kubectl not installed"
    said = subprocess.run(["kubectl", "version", "--client"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"v(\d+)\.(\d+)", said)
    is_old = version is None or tuple(map(int, version.groups())) < OLDEST
    return "kubectl before 1.31 (it has no WebSockets)" if is_old else ""


def status(code, reason, message):
    content = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    return JSONResponse({**content, "message": message, "reason": reason, "code": code}, status_code=code)


class Pod:
    """A pod as a process. why: it waits, or why it was ended. is_refused: by the node, before it ran."""

    def __init__(self, name, job, *, why="", is_refused=False, limits=None):
        self.name, self.job, self.why, self.is_leaving = name, job, why, False
        self.is_refused, self.limits = is_refused, limits or {}
        self.created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.spec = job["spec"]["template"]["spec"]
        container = self.spec["containers"][0]
        given = {each["name"]: each.get("value", name) for each in container["env"]}
        self.environment = os.environ | given | {MARK: name}
        self.process = None
        if not why:
            self.process = subprocess.Popen(
                container["command"], env=self.environment, stdin=subprocess.DEVNULL, start_new_session=True
            )

    @property
    def phase(self):
        if self.process is None:
            return "Failed" if self.is_leaving or self.is_refused else "Pending"
        code = self.process.poll()
        # One that was evicted has failed, whatever it ended with.
        return "Running" if code is None else "Failed" if code or self.why else "Succeeded"

    def shown(self):
        metadata = self.job["spec"]["template"]["metadata"] | {
            "name": self.name,
            "namespace": self.job["metadata"]["namespace"],
            "creationTimestamp": self.created,
            "ownerReferences": [{"kind": "Job", "uid": self.job["metadata"]["uid"]}],
        }
        if self.is_leaving and self.phase in ("Running", "Pending"):
            metadata["deletionTimestamp"] = self.created
        state = {"Pending": {"waiting": {"reason": self.why}}, "Running": {"running": {}}}
        ended = {"terminated": {"exitCode": 1}}
        told = {"phase": self.phase, "containerStatuses": [{"state": state.get(self.phase, ended)}]}
        if self.is_refused:
            del told["containerStatuses"]
        if self.phase == "Failed" and self.why:
            told["reason"] = self.why
        spec = {
            "nodeName": self.spec["nodeName"],
            "containers": [{"name": "partywall", "resources": {"limits": self.limits}}],
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": told}

    def processes(self):
        """All that it began, as the container's cgroup has them."""
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{MARK}={self.name}\0".encode() in (folder / "environ").read_bytes():
                    yield int(folder.name)

    def end(self, why="", grace_s=20.0):
        """SIGTERM to the first process, and SIGKILL to all that is left when it has ended."""
        self.why, self.is_leaving = why or self.why, True
        if self.process is None:
            return
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(grace_s)
        while left := list(self.processes()):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.process.poll() is None:
                self.process.wait()
            time.sleep(0.02)


class KubernetesCluster:
    """Ends with `stop`. arguments: for kubernetes_args. starts: how many pods a Job gets; waits: why none starts.

    refuses: why the node takes none in; limits: what the namespace adds to each.
    """

    def __init__(self, folder, nodes=("there",)):
        self.jobs, self.pods, self.nodes = {}, [], list(nodes)
        self._as_usual()
        self._numbers, self._lock = itertools.count(1), threading.RLock()
        port = free_port()
        file = Path(folder) / "kubeconfig"
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        users = [{"name": "u", "user": {}}]
        file.write_text(
            json.dumps({"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context],
                        "users": users, "current-context": "c"})
        )  # fmt: skip
        self.arguments = f"--kubeconfig={file} --cache-dir={folder}/cache"
        routes = [
            Route("/api", self._versions),
            Route("/apis", self._groups),
            Route(CORE, self._resources),
            Route(f"{CORE}/nodes/{{name}}", self._node),
            Route(f"{CORE}/namespaces/{{space}}/pods", self._list),
            Route(f"{CORE}/namespaces/{{space}}/pods/{{name}}", self._get),
            WebSocketRoute(f"{CORE}/namespaces/{{space}}/pods/{{name}}/exec", self._exec),
            Route(f"{BATCH}/namespaces/{{space}}/jobs", self._create, methods=["POST"]),
            Route(f"{BATCH}/namespaces/{{space}}/jobs/{{name}}", self._job, methods=["GET", "DELETE"]),
        ]
        app = self._guarded(Starlette(routes=routes))
        configuration = uvicorn.Config(app, host="127.0.0.1", port=port, ws="wsproto", log_level="error")
        self._server = uvicorn.Server(configuration)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive()
            time.sleep(0.01)

    def _guarded(self, app):
        async def answer(scope, receive, send):
            if self.is_down and scope["type"] == "http":
                response = status(503, "ServiceUnavailable", "the server is currently unable to handle the request")
                await response(scope, receive, send)
            else:
                await app(scope, receive, send)

        return answer

    async def _versions(self, _request):
        return JSONResponse({"kind": "APIVersions", "versions": ["v1"]})

    async def _groups(self, _request):
        return JSONResponse({"kind": "APIGroupList", "apiVersion": "v1", "groups": []})

    async def _resources(self, _request):
        pods = {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["get", "list"]}
        return JSONResponse({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "v1", "resources": [pods]})

    async def _node(self, request):
        name = request.path_params["name"]
        if name not in self.nodes:
            return status(404, "NotFound", f'nodes "{name}" not found')
        return JSONResponse({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})

    async def _list(self, request):
        assert request.query_params["labelSelector"] == "app.kubernetes.io/name=partywall-fleet"
        return JSONResponse({"apiVersion": "v1", "kind": "PodList", "items": [pod.shown() for pod in self.pods]})

    async def _get(self, request):
        name = request.path_params["name"]
        pod = next((pod for pod in self.pods if pod.name == name), None)
        return JSONResponse(pod.shown()) if pod else status(404, "NotFound", f'pods "{name}" not found')

    async def _create(self, request):
        job = await request.json()
        name = job["metadata"]["name"]
        with self._lock:
            if name in self.jobs:
                return status(409, "AlreadyExists", f'jobs.batch "{name}" already exists')
            self.jobs[name] = job
            job["metadata"]["uid"] = secrets.token_hex(8)
            for _ in range(self.starts):
                about = {"why": self.refuses or self.waits, "is_refused": bool(self.refuses), "limits": self.limits}
                self.pods.append(Pod(f"{name}-{next(self._numbers)}", job, **about))
        return JSONResponse(job, status_code=201)

    async def _job(self, request):
        name = request.path_params["name"]
        with self._lock:
            job = self.jobs.get(name)
            if job is None:
                return status(404, "NotFound", f'jobs.batch "{name}" not found')
            mine = [pod for pod in self.pods if pod.job is job]
            if request.method == "DELETE":
                uid = (json.loads(await request.body() or b"{}").get("preconditions") or {}).get("uid")
                if uid != job["metadata"]["uid"]:
                    return status(409, "Conflict", f"the UID in the precondition ({uid}) does not match")
                del self.jobs[name]
                threading.Thread(target=self._collect, args=(mine,)).start()
                return JSONResponse({"kind": "Status", "status": "Success"})
            is_over = all(pod.phase in ("Succeeded", "Failed") for pod in mine)
        conditions = [{"type": "Failed", "status": "True"}] if is_over else []
        return JSONResponse({**job, "status": {"conditions": conditions}})

    def _collect(self, pods):
        """Ends pods, which are there until they have ended."""
        for pod in pods:
            pod.end()
        with self._lock:
            self.pods = [pod for pod in self.pods if pod not in pods]

    async def _exec(self, socket):
        """Protocol v5: the first byte of a message names its stream, and 255 ends the stream that follows it."""
        pod = next((pod for pod in self.pods if pod.name == socket.path_params["name"]), None)
        if self.is_down or pod is None or pod.phase != "Running":
            await socket.close()
            return
        assert "v5.channel.k8s.io" in socket.scope["subprotocols"]
        await socket.accept(subprotocol="v5.channel.k8s.io")
        process = await asyncio.create_subprocess_exec(
            *socket.query_params.getlist("command"), env=pod.environment, start_new_session=True,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip

        async def take():
            with contextlib.suppress(Exception):
                while True:
                    message = await socket.receive_bytes()
                    if message[:1] == b"\0":
                        process.stdin.write(message[1:])
                        await process.stdin.drain()
                    elif message == b"\xff\0":
                        process.stdin.close()

        async def give(channel, stream):
            while content := await stream.read(1 << 16):
                # Who asked may be gone.
                with contextlib.suppress(WebSocketDisconnect):
                    await socket.send_bytes(bytes([channel]) + content)

        taking = asyncio.ensure_future(take())
        await asyncio.gather(give(1, process.stdout), give(2, process.stderr))
        code = await process.wait()
        taking.cancel()
        said = {"metadata": {}, "status": "Success"}
        if code:
            causes = [{"reason": "ExitCode", "message": str(code)}]
            said = {"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}
        with contextlib.suppress(WebSocketDisconnect):
            await socket.send_bytes(b"\x03" + json.dumps(said).encode())
            await socket.close()

    def _as_usual(self):
        self.starts, self.waits, self.refuses, self.limits, self.is_down = 1, "", "", {}, False

    def evict(self, node="there"):
        for pod in list(self.pods):
            if pod.spec["nodeName"] == node:
                pod.end("Evicted")

    def remove_all(self):
        """Back to the start, for the next test."""
        self._as_usual()
        with self._lock:
            for pod in self.pods:
                pod.end(grace_s=0.1)
            self.pods, self.jobs = [], {}

    def stop(self):
        self.remove_all()
        self._server.should_exit = True
        self._thread.join(20)
