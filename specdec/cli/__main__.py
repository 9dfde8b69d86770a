"""`python -m specdec.cli` is `specdec`."""

from specdec.cli import main

main()
