"""What checks annotations while tests run, see conftest.py."""

from beartype import BeartypeConf, beartype

# As for mypy, an int is a float where one is asked for.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))
