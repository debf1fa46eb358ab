"""The cache of a user without a home, in a folder where everybody may make files."""

import os
import tempfile

import pytest

from partywall.errors import UsageError
from partywall.host import cache


@pytest.fixture
def homeless(tmp_path, monkeypatch):
    """Returns where the cache is to be made."""
    monkeypatch.delenv("PARTYWALL_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 10**6)
    monkeypatch.setattr("pathlib.Path.home", lambda: (_ for _ in ()).throw(RuntimeError))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"partywall-cache-{os.geteuid()}"


def test_a_cache_that_somebody_else_made_is_refused(homeless):
    """Kernels and root images of guests would come from there."""
    homeless.mkdir()
    with pytest.raises(UsageError, match="is not a folder that only you can write to"):
        cache.cache_root()


@pytest.mark.parametrize("made", ["writable", "link", "file"])
def test_a_cache_that_others_can_write_to_or_that_leads_elsewhere_is_refused(tmp_path, made):
    folder = tmp_path / "cache"
    match made:
        case "writable":
            folder.mkdir()
            folder.chmod(0o777)
        case "link":
            folder.symlink_to("/")
        case "file":
            folder.touch()
    with pytest.raises(UsageError, match="set PARTYWALL_CACHE"):
        cache._own(folder)


def test_a_cache_of_ones_own_is_made_private_and_kept(tmp_path):
    for _ in range(2):
        assert cache._own(tmp_path / "cache").stat().st_mode & 0o777 == 0o700
