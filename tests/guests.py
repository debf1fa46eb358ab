"""The accelerator of guests in tests: emulation, which works everywhere, unless PARTYWALL_TEST_ACCEL names KVM."""

import os

ACCEL = os.environ.get("PARTYWALL_TEST_ACCEL", "tcg")
