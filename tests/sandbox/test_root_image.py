"""Root images of guests: recipes, what is told when one cannot be built, and what is left of a build that failed."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partywall.errors import CapabilityError
from partywall.host import Host
from partywall.run.document.scenario import Scenario
from partywall.run.plan.checks import check_host
from partywall.run.plan.requirements import sandboxes
from partywall.sandbox import qemu
from partywall.sandbox.qemu import root
from partywall.sandbox.qemu.needs import build_roots
from partywall.testing import fake_host

pytestmark = pytest.mark.long

PACKAGES = st.lists(st.from_regex(r"[a-z0-9][a-z0-9+.-]{1,9}", fullmatch=True), max_size=4)


def recipe(packages=("fio",), release="bookworm", sources=("deb http://192.0.2.1/debian bookworm main",)):
    return root.Recipe(tuple(packages), release, tuple(sources))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PARTYWALL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PARTYWALL_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(root, "SHARED_CACHE", tmp_path / "shared")
    return tmp_path / "cache"


def put(cache, made, programs=("fio",)):
    folder = cache / "guest-roots" / made.key
    folder.mkdir(parents=True)
    (folder / "root.ext4").write_bytes(b"")
    (folder / "recipe.json").write_text(json.dumps({"packages": made.packages, "programs": programs}))
    return folder


@given(PACKAGES, PACKAGES)
def test_the_same_packages_in_another_order_are_the_same_image_and_others_are_another(first, second):
    each, two = (root.Recipe(tuple(sorted(set(p))), "x", ("deb a x main",)) for p in (first, second))
    assert (each.key == two.key) == (set(first) == set(second))


def test_another_release_or_source_is_another_image():
    changed = [recipe(), recipe(release="trixie"), recipe(sources=("deb http://192.0.2.2/ bookworm main",))]
    assert len({each.key for each in changed}) == 3


def test_an_image_is_found_in_the_users_cache_or_in_the_one_root_made_for_all(cache):
    assert root.cached(recipe()) is None
    put(cache.parent / "shared", recipe())
    assert root.cached(recipe()).holds("fio")
    own = put(cache, recipe(), programs=("stress-ng",))
    image = root.cached(recipe())
    assert (image.folder, image.holds("fio"), image.holds("/usr/bin/fio")) == (own, False, True)


def test_a_cached_image_is_built_no_second_time(cache):
    put(cache, recipe())
    assert root.build(recipe(), pytest.fail, fake_host()).packages == ("fio",)


def test_a_spoilt_entry_is_no_image(cache):
    folder = put(cache, recipe())
    (folder / "recipe.json").write_text("{")
    assert root.cached(recipe()) is None


def test_without_mmdebstrap_nothing_is_built_and_the_remedy_is_reported():
    with pytest.raises(CapabilityError, match=r"mmdebstrap was not found.*apt-get install mmdebstrap"):
        root.build(recipe(), pytest.fail, fake_host(which=lambda name: name if name == "apt-get" else None))


@pytest.mark.skipif(bool(root.lacking(Host.here())), reason=f"root images need: {root.lacking(Host.here())}")
def test_a_build_that_fails_says_why_and_leaves_nothing(cache):
    said = []
    missing = recipe(sources=(f"deb [trusted=yes] file://{cache}/nothing bookworm main",))
    with pytest.raises(CapabilityError, match=r"the root image of fio could not be built: .*") as caught:
        root.build(missing, said.append, Host.here())
    assert "Traceback" not in str(caught.value)
    assert [path.name for path in cache.iterdir()] == ["guest-roots.lock"]
    assert list((cache.parent / "state").iterdir()) == []


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (["E: Unable to locate package fioo", "E: setup failed"], "has no package fioo.*apt-cache search"),
        (["I: hm", "E: Failed to fetch http://x/ Could not resolve 'x'"], "Failed to fetch .*apt-get update"),
        ([], "no output"),
    ],
)
def test_the_reason_of_a_failed_build_is_apts_own(said, words):
    assert re.search(words, root._why_not(recipe(), said))


def test_time_left_shrinks_with_the_stages_and_grows_with_a_slow_start():
    left = [root.seconds_left(stage, 5.0 * stage) for stage in range(7)]
    assert left == sorted(left, reverse=True)
    assert root.seconds_left(2, 100) > root.seconds_left(2, 10)


def test_programs_of_a_tree_are_those_in_its_folders_for_programs(tmp_path):
    for name, mode in (("usr/bin/fio", 0o755), ("usr/sbin/nginx", 0o755), ("usr/bin/README", 0o644), ("opt/x", 0o755)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch(mode)
    (tmp_path / "bin").symlink_to("usr/bin")
    (tmp_path / "usr/bin/awk").symlink_to("/etc/alternatives/awk")
    assert sorted(root.programs(tmp_path)) == ["awk", "fio", "nginx"]


def scenario(command, **sandbox):
    victim = {"command": command, "metric": {"csv_column": 1}, "sandbox": {"backend": "qemu", "accel": "tcg"} | sandbox}
    return Scenario.model_validate({"partywall": 1, "name": "x", "victims": {"v": victim}})


def test_a_program_that_the_image_does_not_hold_is_reported_before_the_run(cache, monkeypatch):
    monkeypatch.setattr(root.Recipe, "of", classmethod(lambda _cls, packages, _host: recipe(packages)))
    put(cache, recipe(), programs=("fio",))
    with pytest.raises(CapabilityError, match=r"victims.v.command: the guest's root \(fio\) does not contain 'nosuch'"):
        check_host(scenario(["nosuch"], root=["fio"]), fake_host())
    with pytest.raises(CapabilityError) as caught:
        build_roots(sandboxes(scenario(["nosuch"], root=["fio"])), pytest.fail, fake_host())
    assert "does not contain 'nosuch'" in str(caught.value)
    build_roots(sandboxes(scenario(["fio"], root=["fio"])), pytest.fail, fake_host())


def test_a_command_of_a_guest_is_not_looked_for_on_the_host(cache, monkeypatch):
    monkeypatch.setattr(root.Recipe, "of", classmethod(lambda _cls, packages, _host: recipe(packages)))
    put(cache, recipe(), programs=("only-in-guests",))
    monkeypatch.setattr(qemu.GuestKernel, "prepared", lambda: None)
    host = fake_host(which=lambda name: None if name == "only-in-guests" else f"/usr/bin/{name}")
    check_host(scenario(["only-in-guests"], root=["fio"]), host)


def test_the_recipe_of_this_host_names_its_release_and_its_own_sources():
    if not shutil.which("apt-get") or os.environ.get("APT_CONFIG"):
        pytest.skip("no apt-get")
    try:
        made = root.Recipe.of(["stress-ng", "fio", "fio"], Host.here())
    except CapabilityError as error:
        pytest.skip(str(error))
    assert made.packages == ("fio", "stress-ng")
    assert all(re.fullmatch(rf"deb (\[signed-by=\S+\] )?\S+ {made.release}\S* \S+", line) for line in made.sources)


def target(suite="bookworm", origin="Debian", uri="http://192.0.2.1/debian"):
    return root.Target(uri, suite, "main", origin, "/no/such.list:1")


def test_of_a_hosts_sources_those_of_others_are_left_out_though_their_suite_has_the_releases_name():
    theirs = target(origin="Docker", uri="http://192.0.2.2/")
    own = [target(), target("bookworm-security"), target("bookworm-backports", "Debian Backports")]
    result = root.own_sources([theirs, *own, target("trixie")], "bookworm", ["debian"])
    assert result == own
    assert root.own_sources([target(origin="Ubuntu")], "bookworm", ["mint", "ubuntu"]) == [target(origin="Ubuntu")]


def test_where_no_list_was_fetched_yet_every_source_of_the_release_is_used():
    unknown = [target(origin="$(ORIGIN)"), target("bookworm-updates", "")]
    assert root.own_sources([*unknown, target("trixie", "")], "bookworm", ["debian"]) == unknown


STANZAS = """# deb http://192.0.2.1 x main
Types: deb
URIs: http://192.0.2.1/debian
Signed-By: /usr/share/keyrings/a.gpg, /usr/share/keyrings/b.gpg

# of ours

Types: deb
URIs: http://192.0.2.2/debian

Types: deb
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
"""
LINES = """# of ours
deb [arch=amd64 signed-by=/etc/apt/keyrings/c.asc] http://192.0.2.1/debian bookworm main
deb http://192.0.2.1/debian bookworm main
"""


@pytest.mark.parametrize(
    ("text", "number", "stanzas", "keys"),
    [
        (STANZAS, 1, True, "/usr/share/keyrings/a.gpg,/usr/share/keyrings/b.gpg"),
        (STANZAS, 2, True, ""),
        (STANZAS, 3, True, ""),
        (STANZAS, 4, True, ""),
        (LINES, 2, False, "/etc/apt/keyrings/c.asc"),
        (LINES, 3, False, ""),
        (LINES, 0, False, ""),
    ],
)
def test_the_key_that_the_host_trusts_a_source_by_goes_with_it(text, number, stanzas, keys):
    assert root.signed_by(text, number, stanzas=stanzas) == keys


def test_a_sources_line_carries_its_key(tmp_path):
    (tmp_path / "own.list").write_text(LINES)
    made = root.Target("http://192.0.2.1/debian", "bookworm", "main", "Debian", f"{tmp_path}/own.list:2")
    assert made.line == "deb [signed-by=/etc/apt/keyrings/c.asc] http://192.0.2.1/debian bookworm main"


@pytest.mark.skipif(bool(root.lacking(Host.here())), reason=f"root images need: {root.lacking(Host.here())}")
def test_a_package_that_no_list_knows_is_reported_before_anything_is_fetched(cache, monkeypatch):
    if not any(Path(file).exists() for file in root._targets("$(FILENAME)", Host.here())):
        pytest.skip("apt has no package lists")
    monkeypatch.setattr(root, "_built", lambda *_: pytest.fail("a build was begun"))
    with pytest.raises(CapabilityError, match=r"bookworm has no package nosuchpackage-x, so .*apt-cache search"):
        root.build(recipe(("fio", "nosuchpackage-x")), pytest.fail, Host.here())
    assert not (cache / "guest-roots").exists()
