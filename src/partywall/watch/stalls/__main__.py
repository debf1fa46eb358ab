"""`python -m partywall.watch.stalls`."""

import sys

from partywall.watch.stalls.resident import main

sys.exit(main())
