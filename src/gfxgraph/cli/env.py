"""Print what is here: another name of ``gfxgraph status``."""

from gfxgraph.cli.status import command

__all__ = ["command"]
