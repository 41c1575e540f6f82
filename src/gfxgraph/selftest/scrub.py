"""What must not be in a report that is sent to strangers: who and where the owner of the machine is."""

from __future__ import annotations

import getpass
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import gfxgraph

FOLDER_PREFIX = "gfxgraph-selftest-"
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)


def cleaned(value: object) -> Any:
    """``value``, plain data, without home and installation folders, user name, host name and secrets."""
    return _cleaned(value, scrubber())


def _cleaned(value: Any, scrub: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, Mapping):
        return {
            scrub(str(name)): "<not shown>" if _SECRET.search(str(name)) and each else _cleaned(each, scrub)
            for name, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_cleaned(each, scrub) for each in value]
    return value


def scrubber() -> Callable[[str], str]:
    """A function that takes home folders, installation folders, user and host name out of a text."""
    package = str(Path(gfxgraph.__file__).parent)
    plain = [(package, "<gfxgraph>"), (sys.prefix, "<python>"), (sys.base_prefix, "<python>")]
    plain += [(str(Path(tempfile.gettempdir()) / FOLDER_PREFIX), "<temporary>/")]
    with suppress(RuntimeError):
        plain.append((str(Path.home()), "~"))
    # Longest first: an environment inside the home folder is the environment.
    plain = sorted((pair for pair in plain if len(pair[0]) > 3), key=lambda pair: -len(pair[0]))
    patterns = [(re.compile(r"(/home|/Users|[A-Za-z]:\\Users)[/\\][^/\\\s:;,'\"]+"), "~")]
    user = ""
    with suppress(OSError, KeyError, ImportError):
        user = getpass.getuser()
    if user and user != "root":
        # As part of a path only: a user may be called "amd" or "gpu".
        patterns.append((re.compile(rf"(?<=[/\\]){re.escape(user)}(?=[/\\:\s]|$)"), "<user>"))
    host = platform.node()
    if len(host) > 2 and host != "localhost":
        patterns.append((re.compile(rf"(?<![\w.-]){re.escape(host)}(?![\w-])"), "<host>"))
    patterns.append((re.compile(r"(?<=://)[^/\s@]+@"), ""))

    def scrub(text: str) -> str:
        for found, shown in plain:
            text = text.replace(found, shown)
        for pattern, shown in patterns:
            text = pattern.sub(shown, text)
        return text

    return scrub
