"""Root images with real software for guests, built from distribution packages and cached by recipe.

A recipe consists of the requested packages, the release and its sources. The image is one ext4 file that all guests
read and none writes: each has its own layer, which disappears with it. Services and their configuration are not
handled; a scenario's command starts what it needs.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from partywall.errors import CapabilityError
from partywall.files import replace_folder_durably
from partywall.host import Host, install
from partywall.host.cache import cache_root
from partywall.host.label import Label
from partywall.sandbox import reaper

TOOL = "mmdebstrap"
FORMAT = 1
SHARED_CACHE = Path("/var/cache/partywall")
# Space for files that guests write; a hole in the file until then.
SPARE_BYTES = 512 << 20
# The PATH in a guest, see agent/crates/init.
PROGRAM_FOLDERS = ("usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin")
Say = Callable[[str], None]
TimeLeft = Callable[[float], None]
# A prefix for a command that ends with this process, together with all its children. Its mounts end with it, so that
# nobody removes files through a mount.
_BY_ITSELF = (
    *("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private"),
    *("--pid", "--fork", "--kill-child", "--mount-proc"),
)

# mmdebstrap's messages at the start of each stage, a description, and its seconds on a two-core machine.
_STAGES: tuple[tuple[str, str, float], ...] = (
    ("running apt-get update", "reading the package lists", 8),
    ("downloading packages", "fetching the base system", 4),
    ("extracting archives", "unpacking it", 5),
    ("installing essential", "installing it", 10),
    ("installing remaining", "fetching and installing the packages", 15),
    ("cleaning package lists", "tidying up", 2),
    ("making the image", "writing the image", 4),
)


@dataclass(frozen=True)
class Recipe:
    """What a root image is made of. sources: lines in apt's one-line format."""

    packages: tuple[str, ...]
    release: str
    sources: tuple[str, ...]

    @classmethod
    def of(cls, packages: Sequence[str], host: Host) -> Recipe:
        """The recipe on a host: its own release, and its sources for it. CapabilityError if they are unknown."""
        release = _release(host)
        return cls(tuple(sorted(set(packages))), release, _sources(release, host))

    @property
    def key(self) -> str:
        content = json.dumps([FORMAT, self.packages, self.release, self.sources])
        return hashlib.sha256(content.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class RootImage:
    """A finished image. programs: names of programs in it; folder: its place in the cache."""

    folder: Path
    packages: tuple[str, ...]
    programs: frozenset[str]

    @property
    def file(self) -> Path:
        return self.folder / "root.ext4"

    def holds(self, program: str) -> bool:
        """True if it contains the program of a command. Paths are not checked."""
        return "/" in program or program in self.programs


def cached(recipe: Recipe) -> RootImage | None:
    """The image of this recipe if it is in this user's cache, or in root's cache for everybody."""
    for root in dict.fromkeys((cache_root(), SHARED_CACHE)):
        folder = root / "guest-roots" / recipe.key
        try:
            content = json.loads((folder / "recipe.json").read_text())
            image = RootImage(folder, tuple(content["packages"]), frozenset(content["programs"]))
            image.file.open("rb").close()
        except (OSError, ValueError, KeyError):
            continue
        return image
    return None


def lacking(host: Host) -> str:
    """What prevents building images on a host, with a remedy; empty if nothing does."""
    missing = "{} was not found, so no root image for guests can be built; {}"
    if not host.which(TOOL):
        return missing.format(TOOL, install(host, TOOL))
    if host.euid != 0:
        return (
            "building a root image for guests needs root; build it once with: sudo partywall vm prepare --root "
            "PACKAGE[,PACKAGE…], all users can then use it"
        )
    # Checked last, because it is often only on root's path.
    return "" if host.which("mkfs.ext4") else missing.format("mkfs.ext4", install(host, "e2fsprogs"))


def unbuildable(recipe: Recipe, host: Host) -> list[str]:
    """What prevents building this image on a host, as far as known without trying."""
    unknown = _unknown(recipe.packages, host)
    return [why for why in (lacking(host), _no_package(recipe, unknown) if unknown else "") if why]


def build(recipe: Recipe, say: Say, host: Host, left: TimeLeft | None = None) -> RootImage:
    """The image of this recipe: from the cache, or built now, which takes about a minute.

    say: receives the current stage, with the time left unless `left` receives it in seconds. A failed or killed build
    leaves only what the next start removes. A cache entry appears only when it is complete. CapabilityError if it
    cannot be built.
    """
    if (image := cached(recipe)) is not None:
        return image
    if reasons := unbuildable(recipe, host):
        raise CapabilityError(*reasons)
    with _alone(cache_root()):
        # Another process may have built it while we waited.
        return cached(recipe) or _built(recipe, say, left)


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Allows one build at a time in a cache: two of the same recipe would do the work twice."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with (root / "guest-roots.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except PermissionError as error:
        raise CapabilityError(
            f"{error.filename}: {error.strerror}; set $PARTYWALL_CACHE to a folder that you can write to"
        ) from error


def _built(recipe: Recipe, say: Say, left: TimeLeft | None) -> RootImage:
    # In the cache folder, so that the image is moved instead of copied. Labelled, so that the next start finds it.
    label = Label.create(f"vm-root-{secrets.token_hex(4)}", cache_root())
    try:
        tree, made = label.work / "tree", label.work / "made"
        made.mkdir()
        progress = _Progress(say, left)
        _bootstrap(recipe, tree, label, progress)
        progress.stage("making the image")
        _write_image(tree, made / "root.ext4", label)
        content = {"packages": recipe.packages, "release": recipe.release, "sources": recipe.sources}
        (made / "recipe.json").write_text(json.dumps(content | {"programs": sorted(programs(tree))}))
        folder = cache_root() / "guest-roots" / recipe.key
        folder.parent.mkdir(exist_ok=True)
        # An existing entry with this name was unusable; otherwise it would have been used.
        shutil.rmtree(folder, ignore_errors=True)
        replace_folder_durably(made, folder)
    finally:
        reaper.clean(label)
    image = cached(recipe)
    if image is None:
        raise CapabilityError(
            f"{folder}: the root image that was just built cannot be read; delete this folder and try again"
        )
    return image


def programs(tree: Path) -> Iterator[str]:
    """Names of the programs in a root file system."""
    for name in PROGRAM_FOLDERS:
        folder = tree / name
        # Since the merge of /usr, some of these are links, including absolute ones, to others of the list.
        if folder.is_dir() and not folder.is_symlink():
            yield from (path.name for path in folder.iterdir() if path.is_symlink() or os.access(path, os.X_OK))


def _bootstrap(recipe: Recipe, tree: Path, label: Label, progress: _Progress) -> None:
    options = label.work / "apt.conf"
    # Uses the host's own way to its sources, for example a proxy.
    options.write_text(_output(["apt-config", "dump", "Acquire"]))
    sources = label.work / "sources.list"
    sources.write_text("".join(f"{line}\n" for line in recipe.sources))
    argv = [
        *_BY_ITSELF,
        *(TOOL, "--mode=root", "--variant=minbase", "--format=directory"),
        *(f"--include={package}" for package in ("ca-certificates", "iproute2", "procps", *recipe.packages)),
        *(f"--aptopt={options}", "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/doc/*"),
        # Packages of Java put links there, and cannot be installed if it is missing.
        '--essential-hook=mkdir -p "$1/usr/share/man/man1"',
        '--customize-hook=printf "nameserver 10.0.2.3\\n" > "$1/etc/resolv.conf"',
        '--customize-hook=printf "127.0.0.1 localhost guest\\n" > "$1/etc/hosts"; echo guest > "$1/etc/hostname"',
        *(recipe.release, str(tree), str(sources)),
    ]
    environment = os.environ | label.environment | {"LC_ALL": "C.UTF-8", "TMPDIR": str(label.work)}
    process = subprocess.Popen(
        argv,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env=environment,
        text=True,
        errors="replace",
    )
    said: list[str] = []
    with process:
        for line in process.stderr or ():
            said.append(line.strip())
            progress.stage(line)
    if process.returncode:
        raise CapabilityError(_why_not(recipe, said))


def _why_not(recipe: Recipe, said: Sequence[str]) -> str:
    """The error of a failed build. apt's messages name what it could not find."""
    errors = [line for line in said if line.startswith("E:") and TOOL not in line and "setup failed" not in line]
    unknown = [match[1] for line in said if (match := re.search(r"Unable to locate package (\S+)", line))]
    if unknown:
        return _no_package(recipe, unknown)
    words = (errors or said[-1:] or ["no output"])[0]
    packages = ", ".join(recipe.packages) or "no packages"
    return f"the root image of {packages} could not be built: {words}; check the network with apt-get update"


def _no_package(recipe: Recipe, names: Sequence[str]) -> str:
    return (
        f"{recipe.release} has no package {', '.join(dict.fromkeys(names))}, so the root image cannot be built; "
        "find names with apt-cache search; apt-get update adds new ones"
    )


def _write_image(tree: Path, file: Path, label: Label) -> None:
    size = int(_output(["du", "--summarize", "--block-size=1", str(tree)]).split()[0])
    with file.open("xb") as handle:
        # Space for the file system itself, in whole mebibytes.
        handle.truncate(-(-(size + size // 6 + SPARE_BYTES) >> 20) << 20)
    options = ("-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", "-m", "0", "-O", "^has_journal")
    argv = ["mkfs.ext4", "-q", "-F", *options, "-d", str(tree), str(file)]
    done = subprocess.run(
        argv, capture_output=True, text=True, errors="replace", env=os.environ | label.environment, check=False
    )
    if done.returncode:
        raise CapabilityError(f"{file}: mkfs.ext4: {done.stderr.strip()}; it needs twice {size >> 20} MiB of space")


@dataclass
class _Progress:
    """Reports the current stage of a build, and the estimated time left: to `left`, or else in the text."""

    say: Say
    left: TimeLeft | None = None
    began_ns: int = 0
    at: int = -1

    def stage(self, line: str) -> None:
        number = next((n for n, (words, _, _) in enumerate(_STAGES) if words in line), None)
        if number is None or number <= self.at:
            return
        now_ns = time.monotonic_ns()
        self.began_ns, self.at = self.began_ns or now_ns, number
        left_s, what = seconds_left(number, (now_ns - self.began_ns) / 1e9), _STAGES[number][1]
        if self.left is None:
            self.say(f"{what} (about {max(1, round(left_s))} s left)")
        else:
            self.left(left_s)
            self.say(what)


def seconds_left(stage: int, elapsed_s: float) -> float:
    """The estimated time of this and the following stages, at the speed of the earlier ones. Pure."""
    usual = [seconds for _, _, seconds in _STAGES]
    done = sum(usual[:stage])
    # One fast or slow stage says little, so the usual speed has a weight of 10 s.
    speed = (elapsed_s + 10) / (done + 10)
    return sum(usual[stage:]) * speed


def _release(host: Host) -> str:
    release = _of_host("VERSION_CODENAME", host)
    if not release:
        raise CapabilityError(
            "`/etc/os-release` names no VERSION_CODENAME, so the release of a root image is unknown; "
            "root images need a Debian or Ubuntu host"
        )
    return release


def _of_host(key: str, host: Host) -> str:
    match = re.search(rf"^{key}=(.+)", host.text("/etc/os-release") or "", re.MULTILINE)
    return match[1].strip().strip("\"'") if match else ""


def _sources(release: str, host: Host) -> tuple[str, ...]:
    """The distribution's own sources of this release on the host, in any format."""
    if not host.which("apt-get"):
        raise CapabilityError(
            "`apt-get` was not found, so no root image for guests can be built; use a Debian or Ubuntu host"
        )
    lines = _targets("$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)|$(SOURCESENTRY)", host)
    targets = [Target(*parts) for line in lines if len(parts := line.split("|")) == len(dataclasses.fields(Target))]
    ours = own_sources(targets, release, f"{_of_host('ID', host)} {_of_host('ID_LIKE', host)}".split())
    if not ours:
        raise CapabilityError(
            f"apt knows no source of {release}, the release of this host, so no root image can be built; "
            "add one to /etc/apt/sources.list and run apt-get update"
        )
    return tuple(dict.fromkeys(target.line for target in ours))


@dataclass(frozen=True)
class Target:
    """A list of packages that apt would fetch. entry: the source's file, and its line or stanza."""

    uri: str
    suite: str
    component: str
    origin: str
    entry: str

    @property
    def line(self) -> str:
        """The source in apt's one-line format, with the host's key for it."""
        file, _, number = self.entry.rpartition(":")
        try:
            key = signed_by(Path(file).read_text(), int(number), stanzas=file.endswith(".sources"))
        except (OSError, ValueError):
            key = ""
        return f"deb {f'[signed-by={key}] ' if key else ''}{self.uri} {self.suite} {self.component}"


def own_sources(targets: Sequence[Target], release: str, distribution: Sequence[str]) -> list[Target]:
    """The distribution's own sources of a release, or all if no list has been fetched yet. Pure.

    Another archive may replace packages of the base system, and one that does not answer would end every build.
    """
    sources = [t for t in targets if t.suite == release or t.suite.startswith(f"{release}-")]
    return [t for t in sources if t.origin.partition(" ")[0].casefold() in distribution] or sources


def signed_by(text: str, number: int, *, stanzas: bool) -> str:
    """The keys that a source names, by file or fingerprint; empty if it names none or contains one. Pure.

    number: of the line or stanza. Source: sources.list(5).
    """
    if stanzas:
        bare = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
        parts = [part for part in re.split(r"\n\s*\n", bare) if part.strip()]
        pattern = r"(?mi)^Signed-By:[ \t]*(.+)$"
    else:
        parts, pattern = text.splitlines(), r"\[[^\]]*signed-by=([^\]\s]+)"
    match = re.search(pattern, parts[number - 1]) if 0 < number <= len(parts) else None
    return ",".join(re.split(r"[\s,]+", match[1].strip())) if match else ""


def _unknown(packages: Sequence[str], host: Host) -> list[str]:
    """Names that are not in a host's package lists; empty if it has no lists."""
    if not packages or not host.which("apt-get") or not any(map(host.exists, _targets("$(FILENAME)", host))):
        return []
    known = set(re.findall(r"(?m)^(\S+):$", host.output(["apt-cache", "policy", *packages])))
    return [package for package in packages if package not in known]


def _targets(form: str, host: Host) -> list[str]:
    """A line for each list of packages in a host's sources."""
    return host.output(["apt-get", "indextargets", "--format", form, "Created-By: Packages"]).splitlines()


def _output(argv: list[str]) -> str:
    return subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False).stdout
