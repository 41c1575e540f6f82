"""The ``gfxgraph`` command, and ``python -m gfxgraph``."""

import sys  # and nothing else: what is imported here, Ctrl-C ends with a traceback


def main() -> None:
    """Run the command line; Ctrl-C while it is still being imported ends it as it does later."""
    try:
        # lazily: an interrupt here must find the handler
        from gfxgraph.cli.main import main as command_line
    except KeyboardInterrupt:
        sys.exit(130)
    command_line()


if __name__ == "__main__":
    main()
