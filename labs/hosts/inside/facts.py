"""Says what Partywall knows of this host, and what the host's own tools say, as one line of JSON.

Arguments are the tools' commands; each is answered with what it prints.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

from partywall.core import here


def main() -> int:
    facts = here.host_facts()
    tools = [
        subprocess.run(shlex.split(command), stdout=subprocess.PIPE, text=True, check=True) for command in sys.argv[1:]
    ]
    print(json.dumps({"facts": facts, "tools": [tool.stdout for tool in tools]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
