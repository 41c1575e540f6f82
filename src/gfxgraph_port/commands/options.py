"""Options and refusals that the subcommands of ``gfxgraph port`` share."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import click

from gfxgraph.cli import _contract
from gfxgraph_port.archs import select

LANG = _contract.lang
JSON = _contract.as_json
ARCH = click.option("--arch", metavar="LIST", help="Targets: names, patterns or families, e.g. gfx1030,gfx94*,RDNA3.")


def existing(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not os.path.exists(value):
        _contract.refuse("file_unusable", path=value, problem="no such file or folder")
    if value is not None and not (os.path.isdir(value) or os.path.isfile(value)):
        _contract.refuse("file_unusable", path=value, problem="neither a folder nor a regular file")
    return value


PATH = click.argument("path", default=".", callback=existing)


def archs_of(spec: str | None) -> Any:
    if spec is not None and not spec.strip(", "):
        raise click.UsageError("--arch names no architecture; leave it out for all of them")
    try:
        return select(spec)
    except ValueError as error:
        known = [row.name for row in select(None)] + sorted({row.family for row in select(None)})
        _contract.refuse_name("architecture", str(spec), known, str(error).partition("known: ")[2] or str(error))


def fail(message: object) -> NoReturn:
    if isinstance(message, OSError) and message.filename is not None:
        _contract.refuse("file_unusable", path=message.filename, problem=message.strerror or message)
    _contract.refuse("port_refused", problem=message)
