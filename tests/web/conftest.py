"""Servers for the tests."""

import pytest

from partywall.core import here
from partywall.host import Host
from partywall.testing import fake_host
from partywall.web.jobs import Folder
from partywall.web.runner import Runner
from partywall.web.security import Role, Secrets, Site
from tests.web.web_site import Direct, Page


@pytest.fixture
def folder(tmp_path) -> Folder:
    made = Folder(tmp_path / "runs")
    made.make()
    return made


@pytest.fixture
def server(folder) -> Direct:
    made = Direct(
        folder,
        Site(8733),
        Secrets(folder.own),
        read_host=lambda: fake_host(here.described({}, Host.here()) | {"cpus_allowed": [0, 1]}),
    )
    made.runner = Runner(folder)
    return made


@pytest.fixture
def page(server) -> Page:
    return Page(server)


@pytest.fixture
def viewer(folder) -> Page:
    """A client that may only look."""
    made = Direct(folder, Site(8733), Secrets(folder.own, Role.LOOK))
    made.runner = Runner(folder)
    return Page(made)


@pytest.fixture
def shared(folder) -> Page:
    """A client that has opened the link to share, and so may only look, beside others who may do more."""
    made = Direct(folder, Site(8733), Secrets(folder.own, shares_view=True))
    made.runner = Runner(folder)
    page = Page(made, login=False)
    assert page.get(f"/login?token={made.secrets.view_token}").status_code == 200
    return page
