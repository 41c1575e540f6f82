"""What ``gfxgraph run`` says when its program has ended: one line, and a page where asked for.

Every process leaves its statistics in a folder of the run as it ends; with ``--report`` also what it captured. The
program's own status is the status.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import click

from gfxgraph import config, files
from gfxgraph.diagnostics.render import visible
from gfxgraph.reporting import run_line
from gfxgraph.startup import stats_file

_LIBRARIES = re.compile(r"\S*/(?:site|dist)-packages/")


class RunEnd:
    """What the processes of one run leave, and what is made of it.

    Args:
        folder: empty, of this run alone.
        environment: the program's.
        page: where the HTML report goes.
    """

    def __init__(
        self, folder: Path, environment: Mapping[str, str], page: str | None, is_profiled: bool = False
    ) -> None:
        self.folder, self.page, self.is_profiled = folder, page, is_profiled
        self.lang = config.language_of(environment)
        self.environment = {**environment, stats_file.VARIABLE: str(folder / "stats")}
        if page:
            self.environment["GFXGRAPH_REPORT"] = str(folder)
        if is_profiled:
            self.environment["GFXGRAPH_PROFILE"] = "1"

    def tell(self, status: int, *, is_quiet: bool, as_json: bool, is_guarded: bool) -> int:
        """Say how the run ended, write what was asked for; return the status to end with."""
        rows = _rows(self.folder)
        result = self._write_page(status) if self.page else status
        if not is_quiet:
            told = run_line.summary(status, rows, is_guarded, self.lang == "zh", bool(self.page))
            click.echo(json.dumps(told, ensure_ascii=False) if as_json else _short(visible(told["line"])), err=True)
            if self.is_profiled and not as_json:
                self._show_profile()
        return result

    def _show_profile(self) -> None:
        """The line about GPU time and its tables; the trace for Perfetto, beside the page."""
        # lazily: few runs are profiled
        from gfxgraph.reporting import process_files, profile_text

        found = [table["profile"] for table in process_files.read(self.folder) if table.get("profile")]
        line = run_line.profiled(found, self.lang == "zh")
        if line:
            trace = Path(str(self.page)).with_suffix(".trace.json")
            graphs = [graph for each in found for graph in each["graphs"]]
            files.write(trace, json.dumps(profile_text.chrome_trace(graphs)))
            click.echo(_short(visible(f"          {line}; {self.page}, {trace}")), err=True)
            for row in "\n\n".join(map(profile_text.text, found)).split("\n"):
                click.echo(_short(visible(row)), err=True)

    def _write_page(self, status: int) -> int:
        # lazily: a run without a report does without
        from gfxgraph.reporting import page, process_files

        found = process_files.read(self.folder)
        if not found:
            why = "no process used torch with gfxgraph on"
            click.echo(f"gfxgraph report: {self.page} was not written: {why}", err=True)
            return status or 2
        files.write(Path(str(self.page)), page.html(found))
        click.echo(f"gfxgraph report: {self.page}", err=True)
        return status


def _rows(folder: Path) -> list[dict[str, object]]:
    """``stats()`` of each process: what it wrote at its end, else the last that a killed one had kept."""
    found = [json.loads(line) for line in _lines(folder / "stats")]
    ended = {row["pid"] for row in found}
    kept = [json.loads(line) for path in sorted(folder.glob("stats.*")) for line in _lines(path)]
    return [row["stats"] for row in (*found, *(row for row in kept if row["pid"] not in ended))]


def _lines(path: Path) -> list[str]:
    """What processes appended; of a process that died in the middle of its line, nothing."""
    try:
        found = files.read(path).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [line for line in found if line.startswith("{") and line.endswith("}")]


def _short(text: str) -> str:
    return _LIBRARIES.sub("", text).replace(f"{Path.cwd()}/", "")
