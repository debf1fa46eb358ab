"""A server that runs as another user than the runner."""

import contextlib
import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pydantic
import pytest

from partywall.errors import UsageError
from partywall.web import forecasting, runner, server
from partywall.web.jobs import Folder, Order
from partywall.web.security import Secrets, Site
from partywall.web.server import Settings
from tests.waiting import until
from tests.web.web_site import Direct

OTHER = "nobody"
TINY = """partywall: 1
name: tiny
budget: 5s
victims: {ring: {probe: pipe}}
aggressors: {copy: {stressor: memory-copy}}
"""


PACKAGES = os.pathsep.join([str(Path(runner.__file__).parents[2]), str(Path(pydantic.__file__).parents[1])])


@pytest.fixture
def open_folder():
    """A folder that every account can enter, which those of pytest are not."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def python() -> str:
    """A Python with which the other account can import Partywall: this one, or the distribution's."""
    for path in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(PermissionError):
            test = subprocess.run(
                [path, "-P", "-c", "import partywall.web.server"],
                env={"PYTHONPATH": PACKAGES}, user=OTHER, extra_groups=[], cwd="/", check=False, capture_output=True,
            )  # fmt: skip
            if test.returncode == 0:
                return path
    return pytest.skip(f"no Python here with which {OTHER} can import Partywall")


def test_an_account_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no account 'nosuch'"):
        server.check(Settings(tmp_path, user="nosuch"))


def test_only_root_can_have_another_account_serve_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(UsageError, match="only if root starts it"):
        server.check(Settings(tmp_path, user=OTHER))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize("place", ["runs", "runs/.partywall/jobs", "."])
def test_an_account_that_can_change_the_queue_does_not_serve_the_page(open_folder, place, monkeypatch):
    folder = Folder(open_folder / "runs")
    folder.make()
    monkeypatch.setattr(sys, "executable", "/bin/true")
    server._check_access(folder, pwd.getpwnam(OTHER))
    (open_folder / place).chmod(0o777)
    with pytest.raises(UsageError, match="could change this folder"):
        server._check_access(folder, pwd.getpwnam(OTHER))


@pytest.mark.parametrize(
    ("settings", "host"),
    [
        ({}, "127.0.0.1"),
        ({"address": "::1"}, "[::1]"),
        ({"address": "0.0.0.0"}, "Box.test"),  # noqa: S104
        ({"address": "10.0.0.2", "names": ("box.test",)}, "box.test"),
    ],
)
def test_the_address_that_is_printed_is_served(settings, host, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "Box.test")
    site = server._site(Settings(Path(), **settings), 8733, "http")
    assert site.names[0] == host
    assert site.is_host(f"{host.lower()}:8733")
    assert not site.is_host("0.0.0.0:8733")


@pytest.mark.parametrize(("scheme", "port"), [("http", 80), ("https", 443)])
def test_browsers_leave_out_the_usual_port(scheme, port):
    assert Site(port, scheme=scheme).is_host("localhost")
    assert Site(port, scheme=scheme).is_origin(f"{scheme}://localhost")
    assert not Site(8733, scheme=scheme).is_host("localhost")


@pytest.mark.long
def test_a_forecast_is_made_with_the_rights_of_the_runner(folder):
    """The server itself never reads the host then."""
    other = Direct(
        folder,
        Site(8733),
        Secrets(folder.own),
        read_host=lambda: pytest.fail("the server read the host"),
        is_runner_other_user=True,
    )
    other.runner = runner.Runner(folder)
    made = other.forecast(Order(kind="run", document=TINY))
    assert made.kind == "run"
    assert made.plan.scenario.name == "tiny"
    with pytest.raises(UsageError, match="pipes"):
        other.forecast(Order(kind="run", document=TINY.replace("pipe}", "pipes}")))


def test_a_bug_in_the_process_of_a_forecast_is_not_called_bad_input(monkeypatch):
    monkeypatch.setattr(forecasting.sys, "executable", shutil.which("false"))
    with pytest.raises(RuntimeError, match="a bug in a forecast"):
        forecasting.answered(Order(kind="run", document=TINY), allow_commands=False)


def test_problems_of_a_forecast_keep_their_lines():
    with pytest.raises(UsageError) as caught:
        forecasting.read({"problems": [{"message": "no", "remedy": "yes", "file": "", "line": 3, "key": "a"}]})
    assert caught.value.problems[0].line == 3


@pytest.mark.host
@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_page_is_served_by_the_other_account_and_a_killed_runner_returns(open_folder, python):
    root = open_folder / "runs"
    words = [python, "-m", "partywall", "serve", str(root), "--port=0", "--user", OTHER]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"PYTHONPATH": PACKAGES}
    ) as process:
        said = ""
        for line in process.stdout:
            said += line
            if re.search(r"/login\?token=", line) or "Ctrl-C" in line:
                break
        try:
            child = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            until(lambda: any(owner(int(pid)) == OTHER for pid in child.read_text().split()), said)
            pid = runner.request(Folder(root), "ping")["pid"]
            assert owner(pid) == "root"
            os.kill(pid, signal.SIGKILL)
            until(lambda: answering(root) not in (None, pid), "no runner was started again")
        finally:
            with_pid = answering(root)
            process.send_signal(signal.SIGTERM)
            process.wait(20)
            if with_pid is not None:
                os.kill(with_pid, signal.SIGKILL)
    assert json.dumps(process.returncode) in ("0", "-15")


def owner(pid: int) -> str:
    try:
        return pwd.getpwuid(Path(f"/proc/{pid}").stat().st_uid).pw_name
    except OSError:
        return ""


def answering(root: Path) -> int | None:
    try:
        return runner.request(Folder(root), "ping")["pid"]
    except ConnectionError:
        return None
