"""Requirements, wherever a project writes them: requirement lists, pyproject, setup.cfg, Pipfile, conda.

Yields one flat list, each row with the group it stands in, so that a CUDA-only extra is told from the core.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name


@dataclass(frozen=True, slots=True)
class Need:
    """One requirement as written. ``group`` is "" for the core dependencies."""

    name: str
    spec: str
    extras: tuple[str, ...]
    line: int
    text: str
    group: str = ""
    marker: str = ""


@dataclass(frozen=True, slots=True)
class Index:
    """A package index or a find-links address as written."""

    url: str
    line: int


class RequirementFile:
    """One file that names requirements.

    Raises:
        ValueError: TOML that does not parse.
    """

    kind = "requirements"

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.lines = text.splitlines()
        self.needs: list[Need] = []
        self.indexes: list[Index] = []
        self.requires_python = ""
        name = path.rpartition("/")[2].lower()
        self.is_lock = name in ("uv.lock", "poetry.lock", "pipfile.lock", "pdm.lock", "pixi.lock")
        if self.is_lock:
            self._lock()
        elif name.endswith(".toml") or name == "pipfile":
            self._toml(tomllib.loads(text))
        elif name == "setup.cfg":
            self._setup_cfg()
        elif name.endswith((".yml", ".yaml")):
            self._conda()
        else:
            self._list()

    def _line_of(self, text: str, start: int = 0) -> int:
        for number, line in enumerate(self.lines[start:], start + 1):
            if text in line and not line.lstrip().startswith("#"):
                return number
        return start + 1

    def _add(self, text: str, line: int, group: str) -> None:
        try:
            parsed = Requirement(text)
        except InvalidRequirement:
            match = re.match(r"[A-Za-z0-9][\w.-]*", text)
            if match:
                self.needs.append(
                    Need(canonicalize_name(match.group()), text[match.end() :].strip(), (), line, text, group)
                )
            return
        self.needs.append(
            Need(
                canonicalize_name(parsed.name),
                str(parsed.specifier) or (f"@ {parsed.url}" if parsed.url else ""),
                tuple(sorted(parsed.extras)),
                line,
                text,
                group,
                str(parsed.marker or ""),
            )
        )

    def _list(self) -> None:
        for number, raw in enumerate(self.lines, 1):
            line = re.sub(r"(^|\s)#.*$", "", raw).strip().rstrip("\\").strip()
            if match := re.match(r"(?:--(?:extra-)?index-url|-i|--find-links|-f)[ =]+(\S+)", line):
                self.indexes.append(Index(match.group(1), number))
            elif line and not line.startswith("-"):
                self._add(re.split(r"\s--", line)[0], number, "")

    def _setup_cfg(self) -> None:
        section, key = "", ""
        for number, raw in enumerate(self.lines, 1):
            if match := re.match(r"\[(.+)\]", raw):
                section, key = match.group(1), ""
            elif match := re.match(r"(\w[\w.-]*)\s*=\s*(.*)", raw):
                key = match.group(1)
                value = match.group(2)
                if key == "python_requires":
                    self.requires_python = value
                if value and key in ("install_requires",):
                    self._add(value, number, "")
            elif raw.strip() and not raw.lstrip().startswith("#"):
                if section == "options" and key == "install_requires":
                    self._add(raw.strip(), number, "")
                elif section == "options.extras_require" and key:
                    self._add(raw.strip(), number, key)

    def _conda(self) -> None:
        inside = False
        for number, raw in enumerate(self.lines, 1):
            if re.match(r"(dependencies|requirements)\s*:", raw):
                inside = True
            elif raw and not raw[0].isspace() and not raw.startswith("-"):
                inside = False
            elif inside and (match := re.match(r"\s*-\s+([A-Za-z0-9][^#:]*?)\s*(#.*)?$", raw)):
                self._add(re.sub(r"^[\w-]+::", "", match.group(1)).replace(" ", ""), number, "")
            if match := re.search(r"(https?://\S+)", raw):
                self.indexes.append(Index(match.group(1), number))

    def _lock(self) -> None:
        for number, raw in enumerate(self.lines, 1):
            if match := re.match(r'\s*"?name"?\s*[=:]\s*"([^"]+)"', raw):
                self.needs.append(Need(canonicalize_name(match.group(1)), "", (), number, raw.strip(), "lock"))

    def _toml(self, data: dict[str, Any]) -> None:
        project = _table(data, "project")
        self.requires_python = str(project.get("requires-python", ""))
        for text in _strings(project.get("dependencies")):
            self._add(text, self._line_of(text), "")
        for group, texts in _table(project, "optional-dependencies").items():
            for text in _strings(texts):
                self._add(text, self._line_of(text), group)
        for group, texts in _table(data, "dependency-groups").items():
            for text in _strings(texts):
                self._add(text, self._line_of(text), group)
        for text in _strings(_table(data, "build-system").get("requires")):
            self._add(text, self._line_of(text), "build-system")
        tool = _table(data, "tool")
        poetry = _table(tool, "poetry")
        self._poetry(_table(poetry, "dependencies"), "")
        for group, body in _table(poetry, "group").items():
            self._poetry(_table(body, "dependencies") if isinstance(body, dict) else {}, group)
        for table in (_table(data, "packages"), _table(data, "dev-packages")):
            self._poetry(table, "")
        uv = _table(tool, "uv")
        for source in (*_dicts(uv.get("index")), *_dicts(poetry.get("source")), *_dicts(data.get("source"))):
            url = str(source.get("url", ""))
            if url:
                self.indexes.append(Index(url, self._line_of(url)))
        for value in _table(uv, "sources").values():
            for row in _dicts(value):
                url = str(row.get("url", "") or row.get("index", ""))
                if "://" in url:
                    self.indexes.append(Index(url, self._line_of(url)))
        for text in _strings(uv.get("extra-index-url")):
            self.indexes.append(Index(text, self._line_of(text)))

    def _poetry(self, table: dict[str, Any], group: str) -> None:
        for name, spec in table.items():
            if name == "python":
                self.requires_python = str(spec)
                continue
            line = next((n for n, t in enumerate(self.lines, 1) if re.match(rf'\s*"?{re.escape(name)}"?\s*=', t)), 1)
            text = spec if isinstance(spec, str) else str(spec.get("version", "")) if isinstance(spec, dict) else ""
            extras = tuple(_strings(spec.get("extras"))) if isinstance(spec, dict) else ()
            optional = isinstance(spec, dict) and bool(spec.get("optional"))
            self.needs.append(
                Need(
                    canonicalize_name(name), text, extras, line, self.lines[line - 1].strip(),
                    "optional" if optional else group,
                )
            )  # fmt: skip

    def core(self) -> Iterator[Need]:
        """Requirements every install brings."""
        for need in self.needs:
            if not self.is_lock and need.group in ("", "build-system"):
                yield need


def _table(data: Any, key: str) -> dict[str, Any]:
    value = data.get(key) if isinstance(data, dict) else None
    return value if isinstance(value, dict) else {}


def _strings(value: Any) -> list[str]:
    return [v for v in value if isinstance(v, str)] if isinstance(value, list) else []


def _dicts(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value]
    return [v for v in value if isinstance(v, dict)] if isinstance(value, list) else []
