"""What an unprivileged user lacks for containers, limits and eBPF, and commands to get it. Only reads."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from partywall.errors import Problem
from partywall.host import Host
from partywall.sandbox import delegation, privileges
from partywall.sandbox.cgroups import Cgroups
from partywall.sandbox.runtime import RUNTIMES

SCOPE = ("systemd-run", "--user", "--scope", "--quiet", "-p", "Delegate=yes")
REEXEC = "systemctl --user daemon-reexec"
DROP_IN = Path("/etc/systemd/system/user@.service.d/delegate.conf")
_RESTRICTED = "kernel/apparmor_restrict_unprivileged_userns"
_PROFILES = Path("/etc/apparmor.d")
_NAMESPACES = ("kernel/unprivileged_userns_clone", "user/max_user_namespaces")


def lacking_scope(what: str, mounted: Cgroups, host: Host, argv: Sequence[str] | None = None) -> Problem | None:
    """Why this process may not create cgroups for `what`, and a remedy; None if it may.

    argv: the command to repeat, by default this process's own.
    """
    if delegation.may_divide_all(mounted, host):
        return None
    if host.euid == 0:
        message = f"{what} needs cgroups, and root may not write them here, as in a container or a user namespace"
        return Problem(message, "run on the host itself")
    if not mounted.is_v2:
        return Problem(
            f"without root, {what} needs cgroup version 2, and this host's cpu controller is in version 1 or nowhere",
            "run with sudo, or boot with systemd.unified_cgroup_hierarchy=1",
        )
    if delegation.find(mounted, host) is not None:
        return None
    return Problem(f"without root, {what} needs a cgroup that systemd delegates to you", _get_scope(host, argv))


def _get_scope(host: Host, argv: Sequence[str] | None) -> str:
    if not manager_runs(host):
        return (
            "run with sudo; or log in over ssh or at a console, since su and sudo start no systemd manager for a user, "
            "or have an administrator start one (loginctl enable-linger USER), and try again"
        )
    return f"run with sudo, or in a delegated scope: {in_scope(command_line() if argv is None else argv)}"


def in_scope(argv: Sequence[str]) -> str:
    """A command in a scope of its own, as a line for a shell."""
    named = "" if "XDG_RUNTIME_DIR" in os.environ else f"XDG_RUNTIME_DIR={_runtime()} "
    return named + shlex.join([*SCOPE, *argv])


def manager_runs(host: Host) -> bool:
    """True if systemd runs a manager for this user, which can create scopes."""
    return host.which(SCOPE[0]) is not None and host.exists(_runtime() / "systemd/private")


def _runtime() -> Path:
    return Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")


def command_line(argv: Sequence[str] | None = None) -> list[str]:
    """The command of this process, as its user would type it."""
    program, *arguments = sys.argv if argv is None else argv
    if Path(program).name == "__main__.py":
        return [sys.executable, "-m", "partywall", *arguments]
    name = Path(program).name
    return [name if shutil.which(name) == program else program, *arguments]


def lacking_controllers(
    names: Iterable[str], there: frozenset[str], on_offer: frozenset[str], argv: Sequence[str] | None = None
) -> Problem | None:
    """The controllers that a cgroup lacks, and how to get them.

    there: its own. on_offer: those that systemd can add.
    """
    missing = sorted(set(names) - there)
    if not missing:
        return None
    noun = "controller" if len(missing) == 1 else "controllers"
    message = f"needs the cgroup {noun} {' and '.join(missing)}, not delegated to you"
    if not on_offer.issuperset(missing):
        return Problem(message, f"run with sudo, or {drop_in()}")
    # systemd passes on controllers that it knew when it started, or that this scope was created with.
    again = in_scope(command_line() if argv is None else argv)
    return Problem(message, f"run with sudo, or: {REEXEC} && {again}")


def drop_in() -> str:
    """What an administrator must do once, so that users' scopes get all controllers."""
    wanted = " ".join((*delegation.CONTROLLERS, "pids"))
    return (
        f"have an administrator delegate all controllers once: sudo mkdir -p {DROP_IN.parent} && "
        f"printf '[Service]\\nDelegate={wanted}\\n' | sudo tee {DROP_IN} && sudo systemctl daemon-reload; then log "
        f"out of all sessions, or, which ends your user services: sudo systemctl restart user@{os.getuid()}.service"
    )


def lacking_hooks(what: str, missing: Sequence[str], host: Host, argv: Sequence[str] | None = None) -> Problem:
    """What attaching eBPF programs to interfaces needs, and how to get it.

    missing: capabilities that the agent lacks.
    """
    names = ", ".join(missing)
    message = f"{what} hooks eBPF programs to interfaces of the host, for which the agent lacks {names}"
    if host.euid == 0 and privileges.is_namespaced(host.text("/proc/self/uid_map")):
        remedy = "run on the host itself with sudo: capabilities in a user namespace do not hold for its interfaces"
        return Problem(message, remedy)
    if host.euid == 0:
        # Those of a container, where sudo adds nothing.
        return Problem(message, f"run on the host itself, or start this container with {names}")
    command = as_root(command_line() if argv is None else argv)
    return Problem(message, f"run: {command}, or give an agent these capabilities (docs/no-root.md)")


def as_root(argv: Sequence[str]) -> str:
    """A command with sudo, as a line for a shell, with its full path, because sudo may use another PATH."""
    program, *arguments = argv
    return shlex.join(["sudo", shutil.which(program) or program, *arguments])


def lacking_namespaces(host: Host) -> Problem | None:
    """Why this user may not create the user namespace for a container's mounts; None if it may."""
    for name in _NAMESPACES:
        if host.text(f"/proc/sys/{name}") == "0":
            setting = name.replace("/", ".")
            value = 1 if "clone" in name else 15000
            return Problem(f"users may make no user namespaces here ({setting} is 0)", f"sudo sysctl {setting}={value}")
    if host.text(f"/proc/sys/{_RESTRICTED}") == "1":
        return _lacking_profile(host)
    if refusal := host.output(["unshare", "--user", "true"]).strip():
        return Problem(f"users may make no user namespaces here ({refusal})", "run with sudo")
    return None


def _lacking_profile(host: Host) -> Problem | None:
    """Why AppArmor denies capabilities in user namespaces; None if a profile exempts the OCI runtime.

    A trial shows nothing: the namespace is created, but without capabilities. Source: Ubuntu's apparmor(7), userns
    rule.
    """
    name = os.environ.get("PARTYWALL_RUNTIME") or next(
        (runtime for runtime in RUNTIMES if host.which(runtime)), RUNTIMES[0]
    )
    program, name = host.which(name) or name, Path(name).name
    rules = host.text(_PROFILES / name) or ""
    is_loaded = not host.exists(_PROFILES / "disable" / name)
    if is_loaded and program in rules and "userns," in rules.split():
        return None
    setting = _RESTRICTED.replace("/", ".")
    return Problem(
        f"AppArmor keeps users from user namespaces here ({setting} is 1, and {_PROFILES / name} does not exempt "
        f"{program})",
        f"run with sudo, or sudo sysctl {setting}=0, or add an AppArmor profile of {program} with the rule userns",
    )
