"""A server without sockets: its application is called directly, and the runner in the same process."""

import json
import re
import time

from starlette.testclient import TestClient

from partywall.web import app
from partywall.web.jobs import Folder
from partywall.web.runner import accepted
from partywall.web.site import Server

ORIGIN = "http://127.0.0.1:8733"
FINDINGS = {"run": "a", "scenario": "demo", "headline": "Two neighbours cost you 12 %", "verdicts": []}


class Direct(Server):
    """A server whose runner is called directly, and starts no job."""

    def act(self, action, **fields):
        return accepted(self.runner.answer(json.dumps({"action": action} | fields).encode()))


class Page(TestClient):
    """A client that has opened the launch link."""

    def __init__(self, server: Server, *, login: bool = True) -> None:
        super().__init__(app.build(server), base_url=ORIGIN, raise_server_exceptions=False, follow_redirects=False)
        self.server = server
        if login:
            answer = self.get(f"/login?token={server.secrets.launch_token}")
            assert answer.status_code == 200
            assert "refresh" in answer.text

    def key_on(self, path: str) -> str:
        """The key of the first form on a page."""
        return re.search(r'name="key" value="([^"]+)"', self.get(path).text).group(1)

    def submit(self, path: str, *, origin: str | None = ORIGIN, **fields):
        """Sends a form as a browser does."""
        fields.setdefault("key", self.server.secrets.key())
        return self.post(path, data=fields, headers={"origin": origin} if origin else {})


def record(folder: Folder, name: str, events=(), **files: str):
    """A record that looks like that of a load."""
    path = folder.root / name
    path.mkdir(parents=True)
    (path / "load.json").write_text("{}")
    lines = [{"at": time.time(), "event": "started", "pid": 1, "start_ticks": 1}, *events]
    (path / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for file, text in files.items():
        (path / file.replace("_", ".")).write_text(text, encoding="utf-8")
    return path
