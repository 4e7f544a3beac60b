"""`python -m perfci`."""

from perfci.cli import main

main()
