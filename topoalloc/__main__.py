"""`python -m topoalloc`."""

from topoalloc.cli.main import entry

entry()
