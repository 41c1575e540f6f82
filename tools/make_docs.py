"""Write the pages that are made from the code, and check that every link between pages leads somewhere.

    python tools/make_docs.py [FOLDER]     (build/docs)

The pages are not kept in the repository: there they would differ from the code sooner or later. Only the
errors are, in both languages, in docs/.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click

from gfxgraph import config
from gfxgraph.cli.main import Commands, cli
from gfxgraph.diagnostics.pages import document

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def commands_page() -> str:
    """Every command's help."""
    group = Commands("gfxgraph")
    parent = click.Context(cli, info_name="gfxgraph")
    parts = ["# Commands\n"]
    for name in group.list_commands(parent):
        command = group.get_command(parent, name)
        assert command is not None
        text = command.get_help(click.Context(command, info_name=name, parent=parent))
        parts.append(f"## gfxgraph {name}\n\n```\n{text}\n```\n")
    return "\n".join(parts)


def settings_page() -> str:
    """Every environment variable with the values it takes."""
    rows = [f"| `{name}` | {values.replace('|', chr(92) + '|')} |" for name, values in config.VARIABLES.items()]
    return "\n".join(["# Settings\n", "| Variable | Values |", "| --- | --- |", *rows, ""])


def dead_links(pages: list[Path]) -> list[str]:
    """Return the links of ``pages`` to files that do not exist."""
    dead = []
    for page in pages:
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            if "://" in target or target.startswith("#"):
                continue
            if not (page.parent / target.split("#")[0]).exists():
                dead.append(f"{page.relative_to(ROOT)}: {target}")
    return dead


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "docs"
    folder.mkdir(parents=True, exist_ok=True)
    pages = {"commands.md": commands_page(), "settings.md": settings_page()}
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")
    # These two are kept in the repository: people search the web for an error's words.
    kept = ROOT / "docs" if len(sys.argv) == 1 else folder
    for lang, name in (("en", "errors.md"), ("zh", "errors.zh.md")):
        (kept / name).write_text(document(lang), encoding="utf-8")
    listed = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, text=True)
    dead = dead_links([ROOT / line for line in listed.splitlines()])
    shown = folder.relative_to(ROOT) if ROOT in folder.parents else folder
    print(f"docs: {', '.join(pages)} written to {shown}")
    if dead:
        sys.exit("docs: links that lead nowhere:\n  " + "\n  ".join(dead))


if __name__ == "__main__":
    main()
