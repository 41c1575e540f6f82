"""Another name for gfxgraph status."""

from gfxgraph.cli.status import command

__all__ = ["command"]
