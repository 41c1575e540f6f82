"""Find the first tensor in which two dumps differ."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from gfxgraph.cli import _contract


@click.command("diff", cls=_contract.Command)
@click.argument("one", type=click.Path(path_type=Path))
@click.argument("other", type=click.Path(path_type=Path))
@click.option(
    "--rtol",
    type=_contract.Number(min=0.0),
    default=1e-3,
    show_default=True,
    metavar="SHARE",
    help="The largest difference that counts as none, relative to the tensor's largest value.",
)
@_contract.as_json
@_contract.quiet
def command(one: Path, other: Path, rtol: float, as_json: bool, quiet: bool) -> None:
    """List where the dumps ONE and OTHER differ, the first tensor first.

    \b
    gfxgraph diff eager.npz graph.npz

    Both come from gfxgraph.dump(...).save(FILE), on one machine or on two.

    Exit status: 0 nothing differs, 1 something does, 2 a file cannot be read.
    """
    # lazily: it needs torch
    from gfxgraph.reporting.dump import differences

    rows: list[dict[str, object]] = [
        {"name": name, "difference": most, "relative": relative, "what": what}
        for name, most, relative, what in differences(_read(one), _read(other))
        if relative > rtol
    ]
    if as_json:
        click.echo(json.dumps(rows))
    elif not quiet:
        for row in rows:
            how = f"{row['difference']:.3g} ({row['relative']:.2g} of its largest)"
            click.echo(f"{row['name']}: {row['what'] or how}")
        click.echo(f"{len(rows)} differ" if rows else "nothing differs")
    sys.exit(_contract.FOUND if rows else 0)


def _read(path: Path) -> dict[str, object]:
    # lazily: help does without
    import zipfile

    import numpy

    from gfxgraph.errors import first_line

    try:
        with numpy.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except (OSError, ValueError, AttributeError, zipfile.BadZipFile) as error:
        _contract.refuse("file_unusable", path=path, problem=first_line(error))
