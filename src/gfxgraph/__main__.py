"""``python -m gfxgraph``: the same as ``gfxgraph``."""

from gfxgraph.cli.main import main

if __name__ == "__main__":
    main()
