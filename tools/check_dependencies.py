"""Hold the dependencies: a known permissive licence, a release of the last two years, actions pinned by commit.

    python tools/check_dependencies.py [--sbom FILE]

Each dependency of pyproject.toml has a row in dependencies.toml, whose licence is compared with what the installed
package says of itself. ``--sbom`` writes what a plain install brings (CycloneDX 1.6), from what is installed here.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from datetime import date, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("dependencies.toml")
OLDEST = timedelta(days=2 * 365)
PERMISSIVE = {"MIT", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "ISC", "0BSD", "Zlib", "CC0-1.0", "PSF-2.0"}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
ACTION = re.compile(r"uses:\s*([^@\s]+)@(\S+)")


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def dependencies(project: dict[str, Any]) -> dict[str, str]:
    """By name: "run" for what a plain install brings, else the extra that brings it."""
    found: dict[str, str] = {}
    groups = {"run": project["dependencies"]} | project["optional-dependencies"]
    for group, lines in groups.items():
        for line in lines:
            match = NAME.match(line)
            if match is not None and normal(match[0]) != normal(project["name"]):
                found.setdefault(normal(match[0]), group)
    return found


def licences(text: str) -> set[str]:
    """The licences of an SPDX expression, whatever joins them."""
    return set(re.findall(r"[\w.+-]+", text)) - {"AND", "OR", "WITH"}


def said_by_package(name: str) -> str:
    """The licence in an installed package's metadata, by its SPDX field; "" where there is none."""
    try:
        return metadata.metadata(name).get("License-Expression") or ""
    except metadata.PackageNotFoundError:
        return ""


def problems(project: dict[str, Any], rows: dict[str, dict[str, Any]], today: date) -> Iterator[str]:
    """What is wrong with the dependencies, in sentences."""
    table = {normal(name): row for name, row in rows.items()}
    wanted = dependencies(project)
    yield from (f"{name} has a row and is no dependency" for name in sorted(table.keys() - wanted.keys()))
    for name, group in wanted.items():
        row = table.get(name)
        if row is None:
            yield f"{name} has no row in {TABLE.name}: licence, version, released"
            continue
        if row["group"] != group:
            yield f"{name} is of the group {group}, and its row says {row['group']}"
        if not licences(row["licence"]) <= PERMISSIVE and (group in ("run", "port") or "why" not in row):
            yield f"{name}: {row['licence']} is not permissive"
        said = said_by_package(name)
        if said and licences(said) != licences(row["licence"]):
            yield f"{name}: the installed package says {said}, and its row {row['licence']}"
        if today - row["released"] > OLDEST and "why" not in row:
            yield f"{name}: {row['version']} is of {row['released']}, more than two years ago: look for a newer one"


def unpinned(folder: Path) -> Iterator[str]:
    """Actions of workflows that are not named by a commit."""
    for path in [*sorted(folder.glob(".github/workflows/*.yml")), folder / "action.yml"]:
        for name, version in ACTION.findall(path.read_text(encoding="utf-8")):
            if not name.startswith("./") and not re.fullmatch(r"[0-9a-f]{40}", version):
                yield f"{path.relative_to(folder)}: {name}@{version} is not pinned by commit"


def sbom(project: dict[str, Any], rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What a plain install brings, and what that needs in turn, as CycloneDX."""
    table = {normal(name): row for name, row in rows.items()}
    todo, seen = [name for name, group in dependencies(project).items() if group == "run"], set()
    parts = []
    while todo:
        name = normal(todo.pop())
        if name in seen:
            continue
        seen.add(name)
        found = metadata.distribution(name)
        needs = [line for line in found.requires or [] if "extra ==" not in line]
        todo += [match[0] for match in map(NAME.match, needs) if match]
        licence = (
            table.get(name, {}).get("licence") or said_by_package(name) or found.metadata.get("License") or "unknown"
        )
        address = f"pkg:pypi/{name}@{found.version}"
        part = {"type": "library", "name": name, "version": found.version, "purl": address, "bom-ref": address}
        parts.append(part | {"licenses": [{"expression": licence}]})
    about = {"type": "library", "name": project["name"], "version": project["version"]}
    about["licenses"] = [{"expression": project["license"]}]
    parts.sort(key=lambda part: str(part["name"]))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": about},
        "components": parts,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sbom", type=Path, metavar="FILE")
    options = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    if options.sbom is not None:
        options.sbom.write_text(json.dumps(sbom(project, rows), indent=1) + "\n", encoding="utf-8")
        return 0
    wrong = [*problems(project, rows, date.today()), *unpinned(ROOT)]
    for each in wrong:
        sys.stderr.write(f"dependencies: {each}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
