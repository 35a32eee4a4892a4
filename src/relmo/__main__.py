"""`python -m relmo` is the `relmo` command."""

from relmo.cli import main

main()
