"""The agent of each machine, built so that its bytes name no folder of the builder.

This machine's own is built by its own Rust. Another machine's is built in a root of Debian's packages, because Debian
has Rust's library for every machine.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

from labs.building import need
from labs.building import run as run_plain
from labs.release.target import CLONE, Release, run
from partywall.errors import TrialError, UsageError
from partywall.host.cache import cache_root

SUITE = "trixie"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# As in agent/.cargo/config.toml, whose flags a variable replaces.
STATIC = "-C target-feature=+crt-static"
# Stripped by the linker of the agent's machine: `strip` knows its own machine alone. Names of functions stay.
PROFILE = {"CARGO_PROFILE_RELEASE_STRIP": "debuginfo", "CARGO_PROFILE_RELEASE_DEBUG": "0"}


def built(machine: str, release: Release, before: Path | None) -> Path:
    """The agent for a machine: one that was built before, or a new one."""
    if before is not None:
        given = before / machine / "partywall-agent"
        if not given.exists():
            raise UsageError(f"{given} is missing; build it, or leave out --agents")
        return given
    agent = (_own if machine == platform.machine() else _foreign)(machine, release)
    kept = release.build / "agents" / machine / "partywall-agent"
    kept.parent.mkdir(parents=True)
    shutil.copy(agent, kept)
    return kept


def _own(machine: str, release: Release) -> Path:
    home = run_plain("sh", "-c", 'echo "${CARGO_HOME:-$HOME/.cargo}"').strip()
    target = release.build / "target"
    env = PROFILE | {"RUSTFLAGS": flags({home: "/cargo", str(CLONE): "/partywall"}), "CARGO_TARGET_DIR": str(target)}
    triple = f"{machine}-unknown-linux-gnu"
    run(["cargo", "build", "--release", "--locked", "--quiet", "--target", triple], release, CLONE / "agent", **env)
    return target / triple / "release/partywall-agent"


def flags(folders: dict[str, str]) -> str:
    """Flags of rustc that make the agent static, and replace folders by names."""
    return " ".join([STATIC, *(f"--remap-path-prefix={folder}={name}" for folder, name in folders.items())])


def _foreign(machine: str, release: Release) -> Path:
    root = cross_root(machine)
    inside = root / "build"
    shutil.rmtree(inside, ignore_errors=True)
    inside.mkdir()
    for name in ("agent", "schema"):
        shutil.copytree(CLONE / name, inside / name, ignore=shutil.ignore_patterns("target"))
    vendored = run_plain("cargo", "vendor", "--locked", inside / "vendor", cwd=inside / "agent")
    config = inside / "agent/.cargo/config.toml"
    config.write_text(config.read_text() + "\n" + vendored.replace(str(inside), "/build"))
    triple = f"{machine}-unknown-linux-gnu"
    name = triple.replace("-", "_")
    compiler = f"{machine}-linux-gnu-gcc"
    given = {name: value for name, value in os.environ.items() if name.startswith("CARGO_PROFILE_")}
    env = given | PROFILE
    env |= {
        "RUSTFLAGS": flags({"/build": "/partywall"}),
        "CARGO_BUILD_TARGET": triple,
        f"CARGO_TARGET_{name.upper()}_LINKER": compiler,
        f"CC_{name}": compiler,
        "PATH": "/usr/bin:/bin",
        "HOME": "/root",
        "SOURCE_DATE_EPOCH": str(release.epoch_s),
    }
    argv = ["chroot", root, "sh", "-c", "cd /build/agent && exec cargo build --release --locked --offline --quiet"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TrialError(f"the agent for {machine} cannot be built: {done.stderr.strip()[-500:]}")
    return inside / "agent/target" / triple / "release/partywall-agent"


def cross_root(machine: str) -> Path:
    """A root of Debian's packages with Rust for another machine, made if it is not in the cache."""
    need(("mmdebstrap", "cargo"), "make release")
    root = cache_root() / "cross" / f"{SUITE}-{machine}"
    if root.exists():
        return root
    there, port = ARCHITECTURES[machine], f"{machine}-linux-gnu"
    rust = ("rustc", "cargo", "libstd-rust-dev", f"libstd-rust-dev:{there}")
    names = [f"{name}/{SUITE}-backports" for name in rust]
    names += ["gcc", "libc6-dev", f"gcc-{port}", f"libc6-dev-{there}-cross", "clang", "libbpf-dev", "linux-libc-dev"]
    sources = '"$1/etc/apt/sources.list"'
    # The backports come from the same mirror as the release, whichever that is.
    also = (
        f"--setup-hook=sed -n 's/ {SUITE} / {SUITE}-backports /p' {sources} > \"$1/etc/apt/sources.list.d/also.list\""
    )
    here = ARCHITECTURES[platform.machine()]
    part = root.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    options = ("--quiet", "--variant=minbase", f"--architectures={here},{there}", f"--include={','.join(names)}", also)
    run_plain("mmdebstrap", *options, SUITE, part)
    part.rename(root)
    return root
