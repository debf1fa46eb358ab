"""The deb and the rpm: a virtual environment that the package manager owns, with all Python packages inside.

No stable distribution has all dependencies in the versions that Partywall needs. So a package brings them, as published
wheels in the versions of packaging/requirements.txt, below /usr/lib/partywall. The interpreter is the system's python3:
bin/python3 is a link to it, and pyvenv.cfg makes Python look for modules here alone.
"""

from __future__ import annotations

import gzip
import os
import shutil
import string
import time
from pathlib import Path

from labs.release import manual
from labs.release.target import CLONE, Distribution, Release, run, tool

HOME = "usr/lib/partywall"
PACKAGING = CLONE / "packaging"
ARCHITECTURES = {"deb": {"x86_64": "amd64", "aarch64": "arm64"}, "rpm": {"x86_64": "x86_64", "aarch64": "aarch64"}}
OF_BUILDER = ("direct_url.json", "uv_cache.json")
PROGRAMS = ("/bin/partywall", "/bin/partywall-watch", "/_bin/partywall-agent")
COMMANDS = {"partywall": "partywall.cli", "partywall-watch": "partywall.watch.stalls.resident"}
"""The modules whose `main` they run, as pyproject.toml states it."""
COMMAND = """\
#!/usr/lib/partywall/bin/python3
import sys

from {module} import main

sys.exit(main())
"""
PYVENV = "home = /usr/bin\ninclude-system-site-packages = false\n"
CHANGES = """\
partywall ({full}) stable; urgency=medium

  * Release {version}: see CHANGELOG.md in /usr/share/doc/partywall.

 -- Partywall developers <partywall@packages.invalid>  {day}
"""


def package(release: Release, distribution: Distribution, machine: str, wheel: Path) -> Path:
    """Writes the package of one distribution and machine, and returns its path."""
    root = release.build / f"{distribution.name}-{machine}"
    stage(release, distribution, machine, wheel, root)
    config = root.with_suffix(".yaml")
    architecture = ARCHITECTURES[distribution.kind][machine]
    config.write_text(_config(release, distribution, architecture, root))
    number = _number(release, distribution)
    name = {"deb": f"partywall_{number}_{architecture}.deb", "rpm": f"partywall-{number}.{architecture}.rpm"}
    made = release.dist / name[distribution.kind]
    run([tool("nfpm"), "package", "-f", config, "-p", distribution.kind, "-t", made], release)
    shutil.rmtree(root)
    return made


def stage(release: Release, distribution: Distribution, machine: str, wheel: Path, root: Path) -> None:
    """Writes all files of the package, as they will be below /."""
    home, share = root / HOME, root / "usr/share"
    _environment(release, distribution, machine, wheel, home)
    _commands(root)
    for name in ("doc", "partywall"):
        shutil.move(home / "share" / name, share / name)
    shutil.rmtree(home / "share")
    shutil.copy(CLONE / "CHANGELOG.md", share / "doc/partywall")
    shutil.copy(PACKAGING / "copyright", share / "doc/partywall")
    manual.write_completions(share)
    manual.write_pages(share / "man/man1", release.epoch_s)
    for page in sorted((share / "man/man1").iterdir()):
        _compress(page)
    if distribution.kind == "deb":
        _of_debian(release, distribution, share)
    else:
        (share / "zsh/vendor-completions").rename(share / "zsh/site-functions")
    (root / "usr/lib/systemd").mkdir()
    shutil.move(share / "partywall/systemd", root / "usr/lib/systemd/system")
    _set_modes(root, release.epoch_s)


def _environment(release: Release, distribution: Distribution, machine: str, wheel: Path, home: Path) -> None:
    packages = home / f"lib/python{distribution.python}/site-packages"
    place = ["--target", packages, "--python-version", distribution.python, "--no-deps", "--link-mode", "copy"]
    place += ["--python-platform", f"{machine}-manylinux_2_28", "--only-binary", ":all:", "--no-config", "--quiet"]
    requirements = ["--require-hashes", "--requirement", PACKAGING / "requirements.txt"]
    run([tool("uv"), "pip", "install", *place, *requirements], release)
    run([tool("uv"), "pip", "install", *place, wheel], release)
    shutil.move(packages / "share", home / "share")
    # Programs of the dependencies.
    shutil.rmtree(packages / "bin")
    (packages / ".lock").unlink(missing_ok=True)
    _forget_builder(packages)
    _write(home / "pyvenv.cfg", PYVENV)
    (home / "bin/python3").symlink_to("/usr/bin/python3")


def _forget_builder(packages: Path) -> None:
    """Removes the files that say where and when this was installed, with their digests in the lists of files."""
    for file in (each for name in OF_BUILDER for each in packages.glob(f"*.dist-info/{name}")):
        file.unlink()
        record = file.with_name("RECORD")
        kept = [line for line in record.read_text().splitlines(keepends=True) if f"/{file.name}," not in line]
        record.write_text("".join(kept))


def _commands(root: Path) -> None:
    (root / "usr/bin").mkdir(parents=True)
    for name, module in COMMANDS.items():
        _write(root / HOME / "bin" / name, COMMAND.format(module=module))
        (root / "usr/bin" / name).symlink_to(f"../lib/partywall/bin/{name}")


def _of_debian(release: Release, distribution: Distribution, share: Path) -> None:
    day = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(release.epoch_s))
    changes = CHANGES.format(full=_number(release, distribution), version=release.version, day=day)
    _write(share / "doc/partywall/changelog.Debian", changes)
    _compress(share / "doc/partywall/changelog.Debian")
    (share / "lintian/overrides").mkdir(parents=True)
    shutil.copy(PACKAGING / "lintian-overrides", share / "lintian/overrides/partywall")


def _number(release: Release, distribution: Distribution) -> str:
    """Version and revision. The revision of a later release of Debian is higher, so that its upgrade takes it."""
    return f"{release.version}-{_revision(distribution)}"


def _revision(distribution: Distribution) -> str:
    return f"1+{distribution.name}" if distribution.kind == "deb" else f"1.{distribution.name}"


def _config(release: Release, distribution: Distribution, architecture: str, root: Path) -> str:
    major, minor = map(int, distribution.python.split("."))
    return string.Template((PACKAGING / "nfpm.yaml").read_text()).substitute(
        arch=architecture,
        version=release.version,
        release=_revision(distribution),
        mtime=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(release.epoch_s)),
        python=distribution.python,
        next_python=f"{major}.{minor + 1}",
        root=root,
    )


def _compress(file: Path) -> None:
    """As gzip -9n: without name and time."""
    file.with_name(file.name + ".gz").write_bytes(gzip.compress(file.read_bytes(), 9, mtime=0))
    file.unlink()


def _set_modes(root: Path, epoch_s: int) -> None:
    """Modes and times do not depend on who builds when: programs are executable, and only their owner may write."""
    for folder, _, names in os.walk(root):
        Path(folder).chmod(0o755)
        for path in (Path(folder, name) for name in names):
            if not path.is_symlink():
                path.chmod(0o755 if str(path).endswith(PROGRAMS) else 0o644)
            os.utime(path, (epoch_s, epoch_s), follow_symlinks=False)


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")
