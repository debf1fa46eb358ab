"""Root images of guests, for tests that need a real one: building it takes a minute and a network."""

import pytest

from partywall.errors import CapabilityError
from partywall.host import Host
from partywall.sandbox.qemu import root


def needed(*packages):
    """Skips a test where no image with these packages has been built."""
    command = f"partywall vm prepare --root {','.join(packages)}"
    return pytest.mark.skipif(not _is_built(packages), reason=f"a root image; build it with: {command}")


def _is_built(packages):
    try:
        return root.cached(root.Recipe.of(packages, Host.here())) is not None
    except CapabilityError:
        return False
