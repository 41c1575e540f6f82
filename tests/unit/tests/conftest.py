"""The sandbox of the command's tests: what they test of programs is tested of the suite's own, too."""

from tests.unit.cli.conftest import sandbox

__all__ = ["sandbox"]
