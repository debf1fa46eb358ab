"""Groups have the names under which people know them."""

import json

from partywall.sandbox.group_names import LENGTH_MAX, known_names

ID = "a" * 64
POD = "0f3f0a5c-58a0-4d7a-9f0e-6f3f6d3c2b1a"
SLICE = f"kubepods-burstable-pod{POD.replace('-', '_')}.slice"
CRI = f"kubepods.slice/kubepods-burstable.slice/{SLICE}/cri-containerd-{ID}.scope"


def name(cgroup, root):
    return known_names([cgroup], root)[cgroup]


def test_a_container_of_a_pod_has_the_names_of_both(tmp_path):
    assert name(CRI, tmp_path) == f"pod 0f3f0a5c/{ID[:12]}", "where the kubelet's logs are not seen"
    logs = tmp_path / "var/log/containers"
    logs.mkdir(parents=True)
    (logs / f"web-7d9f_shop_nginx-{ID}.log").touch()
    assert name(CRI, tmp_path) == "shop/web-7d9f/nginx"
    assert name(f"kubepods/burstable/pod{POD}/{ID}", tmp_path) == "shop/web-7d9f/nginx"


def test_a_container_of_an_engine_has_the_name_that_it_was_given(tmp_path):
    assert name(f"system.slice/docker-{ID}.scope", tmp_path) == f"docker/{ID[:12]}"
    folder = tmp_path / f"var/lib/docker/containers/{ID}"
    folder.mkdir(parents=True)
    (folder / "config.v2.json").write_text(json.dumps({"Name": "/web"}))
    assert name(f"system.slice/docker-{ID}.scope", tmp_path) == "docker/web"
    assert name(f"docker/{ID}", tmp_path) == "docker/web"
    listed = tmp_path / "var/lib/containers/storage/overlay-containers/containers.json"
    listed.parent.mkdir(parents=True)
    listed.write_text(json.dumps([{"id": "b" * 64, "names": ["db"]}]))
    assert name(f"machine.slice/libpod-{'b' * 64}.scope", tmp_path) == "podman/db"


def test_units_and_guests_have_their_names(tmp_path):
    assert name("system.slice/nginx.service", tmp_path) == "nginx.service"
    assert name(r"machine.slice/machine-qemu\x2d1\x2dweb.scope", tmp_path) == "guest/web"
    assert name("lab/one", tmp_path) == "/lab/one"


def test_names_are_different_bounded_and_printable(tmp_path):
    cgroups = ["user.slice/one/a.service", "user.slice/two/a.service", "x" * 500, "x" * 499 + "\n"]
    names = known_names(cgroups, tmp_path)
    assert len(set(names.values())) == len(cgroups)
    assert all(len(each) <= LENGTH_MAX and each.isprintable() for each in names.values())


def test_files_that_are_no_names_are_skipped(tmp_path):
    folder = tmp_path / f"var/lib/docker/containers/{ID}"
    folder.mkdir(parents=True)
    (folder / "config.v2.json").write_text("[1]")
    listed = tmp_path / "var/lib/containers/storage/overlay-containers/containers.json"
    listed.parent.mkdir(parents=True)
    listed.write_text("{")
    assert name(f"docker/{ID}", tmp_path) == f"docker/{ID[:12]}"
