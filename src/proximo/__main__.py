"""`python -m proximo`: the same as the command `proximo`."""

from proximo.cli import main

main()
