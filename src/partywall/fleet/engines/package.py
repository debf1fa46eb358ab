"""Partywall itself as it is brought to a host that has none, or another version. Nothing is installed there.

It is this package with its agent, in a folder beside the host's ledger. What it needs of other projects must be there.
"""

from __future__ import annotations

import functools
import hashlib
import io
import platform
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import partywall
from partywall import __version__
from partywall.fleet.ledger.look import ROOT, SAYS

# Arguments: root, name, processor. With nothing on standard input, it says whether the package is there. As in `look`,
# without single quotes and line ends.
_SCRIPT = (
    "LC_ALL=C; export LC_ALL; umask 077; root=$1; name=$2; machine=$3",
    f'say() {{ printf "{SAYS} %s\\n" "$*"; }}',
    ROOT,
    '[ "$(uname -m)" = "$machine" ] || { say machine "$(uname -m)"; exit 0; }',
    'd=$root/packages/$name; [ -d "$d" ] && { say have "$d"; exit 0; }',
    '[ "$4" = bring ] || { say want; exit 0; }',
    'mkdir -p "$root/packages" && e=$(mkdir "$d.$$" 2>&1 && tar -xzf - -C "$d.$$" 2>&1) || '
    '{ rm -rf "$d.$$"; say no "$e"; exit 0; }',
    'mv -T "$d.$$" "$d" 2>/dev/null || rm -rf "$d.$$"; say have "$d"',
)
SKIPPED = ("__pycache__",)


@dataclass(frozen=True)
class Package:
    """The package as one file. name: of its folder on hosts; another content has another one."""

    content: bytes
    name: str

    @classmethod
    @functools.cache
    def packed(cls) -> Self:
        """Packs it once for all hosts, because that takes a second."""
        root = Path(partywall.__file__).parent
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=6, format=tarfile.PAX_FORMAT) as archive:
            for file in sorted(root.rglob("*")):
                if file.is_file() and not set(SKIPPED) & set(file.parts):
                    archive.add(file, Path("partywall") / file.relative_to(root), filter=_plain)
        content = packed.getvalue()
        whole = hashlib.sha256()
        for file in sorted(root.rglob("*.py")):
            whole.update(file.read_bytes())
        return cls(content, f"{__version__}-{whole.hexdigest()[:12]}")

    def words(self, root: str, *, bring: bool) -> list[str]:
        """The command for a host. bring: whether the content is on its standard input."""
        script = "; ".join(_SCRIPT)
        return ["sh", "-c", script, "sh", root, self.name, platform.machine(), "bring" if bring else "look"]


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def answer(said: bytes) -> tuple[str, str]:
    """The last word of the script, with what follows it: have, want, machine or no; empty if it said nothing."""
    for line in reversed(said.decode(errors="replace").splitlines()):
        if line.startswith(f"{SAYS} "):
            word, _, rest = line.removeprefix(f"{SAYS} ").partition(" ")
            return word, rest
    return "", ""
