"""`python -m partywall`."""

from partywall.cli import main

main()
