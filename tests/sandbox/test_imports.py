"""Each module can be the first that a program imports: an order that happens to work must not be needed."""

import pkgutil
import subprocess
import sys

import partywall.sandbox

NAMES = [info.name for info in pkgutil.walk_packages(partywall.sandbox.__path__, "partywall.sandbox.")]
# A module is imported in a child, so that none finds what another one has imported.
SCRIPT = """
import importlib, os, sys
for name in sys.argv[1:]:
    if (child := os.fork()) == 0:
        try:
            importlib.import_module(name)
            os._exit(0)
        except ImportError as error:
            print(f"{name}: {error}", flush=True)
            os._exit(1)
    os.waitpid(child, 0)
"""


def test_every_module_of_the_sandboxes_can_be_imported_first():
    assert len(NAMES) > 40
    done = subprocess.run([sys.executable, "-c", SCRIPT, *NAMES], capture_output=True, text=True, check=True)
    assert done.stdout == ""
