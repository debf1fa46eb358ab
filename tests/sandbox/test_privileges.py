"""What a process may do is read of any process, whatever it calls itself."""

import os
import subprocess
import sys

from partywall.sandbox.privileges import lacking

NAMED = "import sys\nopen('/proc/self/comm', 'wb').write(b'\\xff)\\x80 (')\nprint(flush=True)\nsys.stdin.read()"


def test_a_process_whose_name_is_no_text_is_looked_at_like_any_other():
    command = [sys.executable, "-c", NAMED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as named:
        assert named.stdout is not None
        assert named.stdin is not None
        named.stdout.readline()
        found = lacking(named.pid)
        named.stdin.close()
    assert found == lacking(os.getpid())
