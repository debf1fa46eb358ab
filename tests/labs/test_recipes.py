"""The recipes of docs/no-root.md that the lab tries."""

import shlex
from types import SimpleNamespace

import pytest

from labs.hosts import recipes
from labs.hosts.machine import Output

PAGE = """\
Words.

```sh
first=$(one)
sudo two "$first"   # a remark
```

```sh
sudo other
```
"""


def test_blocks_are_read_without_remarks():
    assert recipes.blocks(PAGE) == [["first=$(one)", 'sudo two "$first"'], ["sudo other"]]
    assert recipes.block(PAGE, "two") == ["first=$(one)", 'sudo two "$first"']
    with pytest.raises(ValueError, match="unpack"):
        recipes.block(PAGE, "nothing")


def test_the_page_has_the_recipes_and_each_line_is_run_by_whom_it_is_meant_for():
    ran = []

    def note(who):
        return lambda line, **_: ran.append((who, line)) or Output(line, 0, "forward: 7 packets, 7 delivered", 1.0)

    bench = SimpleNamespace(as_root=note("root"), shell=note("user"), user="alice")
    page = recipes.PAGE.read_text()
    assert recipes._capabilities(bench, page) == "an agent with capabilities traced 7 packets"
    (install,) = [line for who, line in ran if "install -m 750" in line and who == "root"]
    assert shlex.split(install)[-5:-3] == ["750", "-g"]
    assert "alice" in install
    assert ran[-1][0] == "user"
    assert ran[-1][1].startswith("PARTYWALL_AGENT=")


def test_a_users_own_number_is_put_into_a_line_of_the_administrator():
    ran = []

    def as_root(line):
        ran.append(line)
        return Output(line, 0, "1000" if line == "id -u alice" else "", 1.0)

    bench = SimpleNamespace(as_root=as_root, user="alice")
    for line in recipes.block(recipes.PAGE.read_text(), "delegate.conf"):
        recipes._line(bench, line)
    assert ran[-1] == 'systemctl restart "user@1000.service"'
