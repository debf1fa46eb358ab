"""Inventories as Ansible reads them, in four forms, and what is wrong with others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from partywall.errors import UsageError
from partywall.fleet.inventory import Place, beside, chosen, expanded, load

INI = """
lone ansible_host=10.0.0.9   # a comment
[web]
web[01:03] ansible_port=2222
[db]
db-[a:b]
[site:children]
web
db
[site:vars]
ansible_user=me
colour='dark blue'
[web:vars]
colour=red
"""
YAML = """
all:
  hosts:
    lone: {ansible_host: 10.0.0.9}
  children:
    site:
      vars: {ansible_user: me, colour: dark blue}
      children:
        web:
          hosts:
            web[01:03]: {ansible_port: 2222}
          vars: {colour: red}
        db:
          hosts:
            db-[a:b]:
"""
JSON = {
    "_meta": {
        "hostvars": {"lone": {"ansible_host": "10.0.0.9"}, **{f"web0{n}": {"ansible_port": 2222} for n in (1, 2, 3)}}
    },
    "all": {"children": ["ungrouped", "site"]},
    "ungrouped": {"hosts": ["lone"]},
    "site": {"children": ["web", "db"], "vars": {"ansible_user": "me", "colour": "dark blue"}},
    "web": {"hosts": ["web01", "web02", "web03"], "vars": {"colour": "red"}},
    "db": ["db-a", "db-b"],
}


@pytest.fixture(params=["ini", "yaml", "json", "program"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    form = request.param
    path = tmp_path / {"ini": "hosts", "yaml": "hosts.yml", "json": "hosts.json", "program": "hosts.sh"}[form]
    texts = {"ini": INI, "yaml": YAML, "json": json.dumps(JSON)}
    path.write_text(texts.get(form) or f"#!/bin/sh\n[ \"$1\" = --list ] && cat <<'end'\n{json.dumps(JSON)}\nend\n")
    if form == "program":
        path.chmod(0o755)
    return path


def test_every_form_gives_the_same_hosts_groups_and_variables(file: Path):
    by_name = {place.name: place for place in load(file)}
    assert sorted(by_name) == ["db-a", "db-b", "lone", "web01", "web02", "web03"]
    web = {"ansible_user": "me", "colour": "red", "ansible_port": "2222"}
    assert by_name["web02"] == Place("web02", ("site", "web"), web)
    assert by_name["db-b"].variables == {"ansible_user": "me", "colour": "dark blue"}
    assert by_name["lone"] == Place("lone", (), {"ansible_host": "10.0.0.9"})


def test_a_json_file_may_have_the_form_of_yaml_whose_hosts_have_their_variables_below_them(tmp_path: Path):
    web = {"hosts": {"web[1:2]": {"ansible_port": 2222}}, "vars": {"colour": "red"}}
    content = {"all": {"hosts": {"a": {"ansible_host": "10.0.0.1"}}, "children": {"web": web}}}
    (tmp_path / "h.json").write_text(json.dumps(content, indent="\t"))
    assert load(tmp_path / "h.json") == (
        Place("a", (), {"ansible_host": "10.0.0.1"}),
        Place("web1", ("web",), {"colour": "red", "ansible_port": "2222"}),
        Place("web2", ("web",), {"colour": "red", "ansible_port": "2222"}),
    )


def test_variables_beside_an_inventory_are_told_apart(tmp_path: Path):
    assert beside(tmp_path / "hosts.ini") == []
    (tmp_path / "group_vars").mkdir()
    assert beside(tmp_path / "hosts.ini") == ["group_vars"]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("", "db-a db-b lone web01 web02 web03"),
        ("web", "web01 web02 web03"),
        ("site,!web*3", "db-a db-b web01 web02"),
        ("!site", "lone"),
        ("db-?", "db-a db-b"),
    ],
)
def test_a_pattern_chooses_hosts_and_groups(file: Path, pattern: str, names: str):
    assert sorted(place.name for place in chosen(load(file), pattern)) == names.split()


def test_a_pattern_that_means_nobody_names_the_groups(file: Path):
    with pytest.raises(UsageError, match="no host or group is called 'wep' — its groups are: db, site, web"):
        chosen(load(file), "wep")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("hosts", "[web\na\n", "hosts:1: [web is no section"),
        ("hosts", "[web]\na b\n", "hosts:2: 'b' after host a has no ="),
        ("hosts", "[web:vars]\na\n", "hosts:2: 'a' has no ="),
        ("hosts", "a[3:1]\n", "hosts:1: [3:1] is empty"),
        ("hosts", "a 'b\n", "hosts:1: No closing quotation"),
        ("hosts", "\n# nobody\n", "it has no hosts"),
        ("hosts", "a/../b\n", "'a/../b' is not the name of a host"),
        ("hosts", "[a:children]\nb\n[b:children]\na\n", "is inside itself: a > b > a"),
        ("h.yml", "web:\n  host: {a: }\n", "h.yml:2: group web has a key 'host'"),
        ("h.yml", "web:\n  hosts: [a, b]\n", "h.yml:2: hosts must be names with a colon behind each, not a list"),
        ("h.yml", "- a\n", "the outermost level must be groups"),
        ("h.yml", "web: {\n", "h.yml:"),
        ("h.json", "{", "it is not the JSON of an inventory"),
        ("h.json", '{"web": 3}', "it is not the JSON of an inventory"),
    ],
)
def test_a_bad_inventory_is_one_clear_line(tmp_path: Path, name: str, text: str, says: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as wrong:
        load(tmp_path / name)
    assert says in str(wrong.value)
    assert str(tmp_path / name) in str(wrong.value)


@pytest.mark.parametrize(
    ("script", "says"),
    [("exit 3", "with --list it ended with 3"), ("echo nothing", "it is not the JSON of an inventory")],
)
def test_a_program_that_fails_says_so(tmp_path: Path, script: str, says: str):
    (tmp_path / "hosts").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "hosts").chmod(0o755)
    with pytest.raises(UsageError, match=says):
        load(tmp_path / "hosts")


def test_a_file_that_is_not_there_says_so(tmp_path: Path):
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        load(tmp_path / "hosts")


def test_ranges_are_those_of_ansible():
    assert expanded("a[08:10]") == ["a08", "a09", "a10"]
    assert expanded("a[1:5:2]b[x:y]") == ["a1bx", "a1by", "a3bx", "a3by", "a5bx", "a5by"]
