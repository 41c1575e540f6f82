"""The repository under audit: which files it has, what kind each is, and how they refer to each other.

Holds plain data and can be sent to worker processes; parsed files are cached per process.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import stat
import subprocess
import tempfile
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from gfxgraph_port.files import printable, read_inside
from gfxgraph_port.guards.cpp import Macros
from gfxgraph_port.guards.names import AMD_WORDS, words
from gfxgraph_port.model import SkippedFile
from gfxgraph_port.readers.python import PyFile

MAX_BYTES = 2_000_000
MAX_READ = 32_000_000  # lock files may be larger than sources; nothing is read beyond this
MOST_DEPTH = 64
_MAX_CONFIGURE = 150_000
_GIT_S = 10
HOME = "hip_compat"  # the folder that `port fix` writes: it is AMD's, and nothing in it is left to port
# What the folder answers: CUDA's toolkit, its warps of 32 lanes, its versions and the flags of nvcc.
ANSWERED_BY_HOME = frozenset(
    {"no-amd-build", "warp-size-32"}
)  # fmt: skip
_SKIP_DIRS = frozenset(
    {HOME, ".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".tox", ".nox", "site-packages",
     ".mypy_cache", ".ruff_cache", ".pytest_cache", ".eggs", ".idea", ".vscode"}
)  # fmt: skip
VENDORED = frozenset(
    {"third_party", "thirdparty", "third-party", "3rdparty", "3rd_party", "vendor", "vendored", "external",
     "externals", "submodules", "extern", "_vendor", "cutlass", "googletest", "pybind11"}
)  # fmt: skip
_SINGLE_HEADERS = frozenset(
    "catch.hpp catch_amalgamated.hpp doctest.h json.hpp httplib.h cli11.hpp cxxopts.hpp argparse.hpp tinyexr.h "
    "tiny_obj_loader.h tiny_gltf.h stb_image.h stb_image_write.h stb_truetype.h miniz.h miniz.c sqlite3.c sqlite3.h "
    "khronos_event.h miniaudio.h nanoflann.hpp toml.hpp picojson.h rapidxml.hpp".split()
)
_RECIPES = frozenset({"cmake", "make", "docker", "requirements", "recipe"})
_RECIPE_NAME = re.compile(
    r"meson\.build|meson(?:_options\.txt|\.options)|build(?:\.bazel)?|workspace(?:\.bazel)?|module\.bazel|configure\.(?:ac|in)|"
    r"justfile|build\.rs|cmakepresets\.json|[\w.-]{1,60}\.(?:bzl|m4|nix|bat|cmd|ps1|pro|pri|gn|gni)"
)
_MAKE_NAME = re.compile(
    r"(?:gnu)?makefile(?:[._-].{0,60})?|make\.(?:inc|def|sys|config)[\w.-]{0,40}|.{1,60}\.(?:mk|mak|make)"
)
_CPP = frozenset("cu cuh c cc cpp cxx h hpp hh hxx inl hip ipp tpp cuf".split())
_REQUIREMENT_NAME = re.compile(
    r"(?=(?:.*[-_.])?(?:requirements?|constraints?)[-_.])[\w.-]+\.(?:txt|in)$|^pyproject\.toml$|^setup\.cfg$|^pipfile$|"
    r"^(uv|poetry|pdm|pixi)\.lock$|^pipfile\.lock$|^(environment|conda|env)[\w.-]*\.ya?ml$|^meta\.yaml$",
    re.I,
)


def kind_of(path: str) -> str:
    """The reader a file goes to; "" for files no rule reads."""
    name = path.rpartition("/")[2]
    lower = name.lower()
    suffix = lower.rpartition(".")[2] if "." in lower else ""
    if suffix in ("py", "pyw"):
        return "python"
    if suffix in _CPP:
        return "cpp"
    if _REQUIREMENT_NAME.match(lower) or re.search(r"(^|/)requirements/[^/]+\.(txt|in)$", path.lower()):
        return "requirements"
    if lower.startswith(("dockerfile", "containerfile")) or suffix in ("dockerfile", "containerfile"):
        return "docker"
    if suffix in ("sh", "bash", "zsh", "sbatch", "slurm") or lower == "configure":
        return "shell"
    if lower == "cmakelists.txt" or suffix == "cmake" or lower.endswith(".cmake.in"):
        return "cmake"
    if _MAKE_NAME.fullmatch(lower):
        return "make"
    if suffix in ("yml", "yaml"):
        return "yaml"
    if lower in ("pip.conf", "pip.ini"):
        return "ini"
    if _RECIPE_NAME.fullmatch(lower):
        return "recipe"
    return ""


@dataclass(slots=True)
class Source:
    """One file to audit."""

    path: str
    kind: str
    nbytes: int


@dataclass
class Project:
    """A repository: its root, its files, and facts gathered over all of them.

    Attributes:
        macros: what its headers define, by platform.
        cuda_sources: C++ files that are CUDA's by their name, or include its headers.
        own_names: what the project itself calls cudaSomething: no names of CUDA's.
        has_home: the folder that `port fix` writes is there.
        extension_names: modules that this repository builds itself.
        requires: which frameworks with builds by platform its lists of packages name; ``other`` for a list without.
        extension_sources: file names that a torch extension builds, which torch's hipify translates.
        diff: for an audit of changes, lines by path; None for an audit of everything.
    """

    root: str
    sources: list[Source] = field(default_factory=list)
    skipped: list[SkippedFile] = field(default_factory=list)
    macros: Macros = field(default_factory=Macros)
    extension_sources: set[str] = field(default_factory=set)
    own_names: set[str] = field(default_factory=set)
    cuda_sources: set[str] = field(default_factory=set)
    extension_names: set[str] = field(default_factory=set)
    has_torch_extension: bool = False
    has_hip_build: bool = False
    has_home: bool = False
    requires: set[str] = field(default_factory=set)
    diff: dict[str, frozenset[int]] | None = None
    _by_module: dict[str, list[str]] = field(default_factory=dict)
    _amd_keys: set[str] = field(default_factory=set)
    _parsed: dict[str, PyFile | None] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, object]:
        state = dict(self.__dict__)
        # Trees are cheaper to make again than to send.
        state["_parsed"] = {}
        return state

    # -- files -------------------------------------------------------------------------------------

    def paths(self, *kinds: str) -> Iterator[str]:
        for source in self.sources:
            if not kinds or source.kind in kinds:
                yield source.path

    def read(self, path: str) -> tuple[str, str]:
        """Decode a file; the second value says what was unusual about it, "" for plain UTF-8.

        Raises:
            OSError: it cannot be read, is no regular file, or is reached through a link.
            UnreadableError: it is binary.
        """
        return decode(read_inside(self.root, path, MAX_READ), python=path.endswith(".py"))

    def parsed(self, path: str) -> PyFile | None:
        """A Python file of the repository as a tree; None when it cannot be read or parsed."""
        if path not in self._parsed:
            if len(self._parsed) > 256:
                self._parsed.clear()
            try:
                self._parsed[path] = PyFile(path, self.read(path)[0])
            except (OSError, SyntaxError, ValueError, RecursionError, MemoryError, UnreadableError):
                self._parsed[path] = None
        return self._parsed[path]

    def forget(self) -> None:
        """Drop what was parsed: an interrupted reader may hold half of its indexes."""
        self._parsed.clear()

    # -- modules -----------------------------------------------------------------------------------

    def index_modules(self) -> None:
        """Make every Python file findable by each ending of its dotted name."""
        for path in self.paths("python"):
            parts = path.removesuffix(".py").split("/")
            if parts[-1] == "__init__":
                parts = parts[:-1]
            for start in range(len(parts)):
                self._by_module.setdefault(".".join(parts[start:]), []).append(path)

    def module_path(self, from_path: str, dotted: str) -> tuple[str, str] | None:
        """The file behind an import and what is left of the name; the longest module name wins."""
        level = len(dotted) - len(dotted.lstrip("."))
        names = [n for n in dotted.lstrip(".").split(".") if n]
        if level:
            base = from_path.split("/")[:-level] if level > 1 else from_path.split("/")[:-1]
            for cut in range(len(names), -1, -1):
                stem = "/".join([*base, *names[:cut]])
                for candidate in (f"{stem}.py", f"{stem}/__init__.py"):
                    if candidate in self._path_set():
                        return candidate, ".".join(names[cut:])
            return None
        for cut in range(len(names), 0, -1):
            found = self._by_module.get(".".join(names[:cut]), [])
            if cut == 1:
                found = [p for p in found if p.count("/") <= 1 or p.split("/")[:-1] == from_path.split("/")[:-1]]
            if found:
                best = max(found, key=lambda p: (len(os.path.commonprefix([p, from_path])), -len(p)))
                return best, ".".join(names[cut:])
        return None

    def module(self, from_path: str, dotted: str) -> tuple[PyFile, str] | None:
        found = self.module_path(from_path, dotted)
        if found is None:
            return None
        parsed = self.parsed(found[0])
        return None if parsed is None else (parsed, found[1])

    def has_file(self, path: str) -> bool:
        return path in self._path_set()

    def is_translated(self, path: str) -> bool:
        """Whether torch's hipify rewrites a source while it builds the extension."""
        name = path.rpartition("/")[2]
        return name in self.extension_sources or (
            self.has_torch_extension and path.endswith((".cu", ".cuh", ".h", ".hpp"))
        )

    def _path_set(self) -> set[str]:
        if not hasattr(self, "_paths"):
            self._paths = {s.path for s in self.sources}
        return self._paths

    # -- repository context ------------------------------------------------------------------------

    def index_platforms(self) -> None:
        """Note every file and folder that stands for AMD by its name."""
        for path in {up for source in self.sources for up in _and_above(source.path)}:
            if not AMD_WORDS.isdisjoint(words_of_path(path.rpartition("/")[2])):
                self._amd_keys.add(_platform_key(path))

    def vendor_of(self, path: str, kind: str) -> str:
        """Whose file this is, by its name and its neighbours.

        ``"amd"`` for AMD's own, ``"nvidia"`` for one with an AMD twin, ``"named"`` for a recipe named for CUDA,
        else ``""``.

        A ``Dockerfile_amd`` beside ``Dockerfile``, ``platforms/rocm.py`` beside ``platforms/cuda.py`` and
        ``csrc/hip`` beside ``csrc/cuda`` make the other one NVIDIA's.
        """
        parts = path.split("/")
        if kind in ("docker", "shell", "requirements", "yaml") and any(
            re.fullmatch(r"cuda\d*|nvidia|cu\d{2,3}", w) for w in words_of_path(parts[-1])
        ):
            return "named"
        if kind == "cpp" and (path.endswith(".hip") or re.search(r"_hip\.\w+$", path)):
            return "amd"
        if any(set(words_of_path(p)) & AMD_WORDS for p in parts):
            return "amd"
        loose = kind in ("docker", "requirements") and parts[-1].lower() not in (
            "pyproject.toml", "setup.cfg", "pipfile",
        )  # fmt: skip
        for end in range(1, len(parts) + 1):
            is_cuda = set(words_of_path(parts[end - 1])) & {"cuda", "nvidia", "cu", "nv"}
            if (is_cuda or (loose and end == len(parts))) and _platform_key("/".join(parts[:end])) in self._amd_keys:
                return "nvidia"
        return ""


class UnreadableError(Exception):
    """The bytes are not text."""


def decode(data: bytes, *, python: bool = False) -> tuple[str, str]:
    """Turn bytes into text: by mark, by declaration, as UTF-8, as Latin-1.

    Raises:
        UnreadableError: binary.
    """
    for mark, name in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if data.startswith(mark):
            try:
                return data.decode(name), "" if name == "utf-8-sig" else f"read as {name}"
            except UnicodeDecodeError as error:
                raise UnreadableError(f"not valid {name}") from error
    if b"\0" in data[:8192]:
        raise UnreadableError("binary")
    try:
        return data.decode("utf-8"), ""
    except UnicodeDecodeError:
        pass
    if python:
        try:
            name, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
            return data.decode(name), f"read as {name}, as declared"
        except (SyntaxError, UnicodeDecodeError, LookupError):
            pass
    return data.decode("latin-1"), "not UTF-8: read as Latin-1"


@lru_cache(maxsize=8192)
def words_of_path(part: str) -> tuple[str, ...]:
    return tuple(w for piece in re.split(r"[.\-]", part) for w in words(piece))


@lru_cache(maxsize=8192)
def _unbranded(part: str) -> str:
    return "".join(w for w in words_of_path(part) if w not in AMD_WORDS | {"cuda", "nvidia", "cu", "nv", "gpu"})


def _platform_key(path: str) -> str:
    """A path without the words that name a platform."""
    return "/".join(filter(None, map(_unbranded, path.split("/"))))


def _and_above(path: str) -> list[str]:
    """A path and the folders that it is in."""
    return [path, *(path[:at] for at, c in enumerate(path) if c == "/")]


def discover(root: str, *, max_bytes: int = MAX_BYTES, vendored: bool = False) -> Project:
    """List a repository's files, honouring ``.gitignore``; a single file makes a project of one.

    No link is followed: what it points to is audited under its own name, or is not the repository's. Links out of
    the tree, special files and names that cannot be printed are passed over, and said so.
    """
    top = os.path.realpath(root)
    if not os.path.isdir(top):
        project = Project(os.path.dirname(top))
        _add(project, os.path.basename(top), max_bytes)
        return project
    project = Project(top, has_home=os.path.isfile(os.path.join(top, HOME, "hip.cmake")))
    ignores = _Ignores(project)
    held: list[str] = []
    _walk(project, ignores, [""], max_bytes, None if vendored else held)
    project.skipped += [
        SkippedFile(folder, "vendored", "third-party folder; --vendored audits it") for folder in held
    ]
    project.sources.sort(key=lambda s: s.path)
    project.index_modules()
    project.index_platforms()
    return project


def _walk(project: Project, ignores: _Ignores, stack: list[str], max_bytes: int, held: list[str] | None) -> None:
    """List the files below some folders. Third-party folders go to ``held``; None lists them like the others."""
    top = project.root
    while stack:
        folder = stack.pop()
        if folder.count("/") >= MOST_DEPTH:
            project.skipped.append(SkippedFile(folder, "too deep", f"below {MOST_DEPTH} folders"))
            continue
        try:
            with os.scandir(os.path.join(top, folder) if folder else top) as listed:
                entries = sorted(listed, key=lambda e: e.name)
        except OSError as error:
            project.skipped.append(SkippedFile(folder or ".", "unreadable", str(error.strerror)))
            continue
        folders = []
        for entry in entries:
            rel = _join(folder, entry.name)
            if printable(entry.name) != entry.name:
                project.skipped.append(SkippedFile(printable(rel), "name", "not UTF-8, or with control characters"))
            elif entry.is_symlink():
                if why := _link(top, entry.path, rel):
                    project.skipped.append(SkippedFile(rel, "link", why))
            elif entry.is_dir(follow_symlinks=False):
                if entry.name in _SKIP_DIRS or ignores.hide(rel, True):
                    continue
                if entry.name.lower() in VENDORED and held is not None:
                    held.append(rel)
                elif os.path.lexists(os.path.join(entry.path, ".git")):
                    project.skipped.append(SkippedFile(rel, "vendored", "a repository of its own (submodule)"))
                else:
                    folders.append(rel)
            elif held is not None and entry.name.lower() in _SINGLE_HEADERS:
                project.skipped.append(SkippedFile(rel, "vendored", "third-party header; --vendored audits it"))
            elif kind_of(rel) and not ignores.hide(rel, False):
                _add(project, rel, max_bytes)
        stack.extend(reversed(folders))


class _Ignores:
    """What git leaves out by ``.gitignore``, asked of git in an empty repository of ours: nothing of the tree's own
    settings is read, and an exported tree has them too. Of the tree's repository only the index is taken.
    """

    def __init__(self, project: Project) -> None:
        self.has_index = os.path.isfile(os.path.join(project.root, ".git", "index"))
        self.kept: set[str] | None = None
        for index in (True, False) if self.has_index else (False,):
            listed, why = _listed(project.root, with_index=index)
            if listed is not None:
                break
            project.skipped.append(SkippedFile(".git/index" if index else ".gitignore", "gitignore", why))
            self.has_index = False
        else:
            return
        self.kept = set(listed)
        for path in listed:
            while path and (path := path.rpartition("/")[0]) not in self.kept:
                self.kept.add(path)

    def hide(self, rel: str, is_dir: bool) -> bool:
        """Whether git leaves a path out. What it tracks it does not, whatever a pattern says.

        Without an index a file's pattern is not held against the recipe of a build: an exported tree holds what
        was tracked (``*.txt`` and ``Makefile`` are common patterns), and one that a tool writes is in a folder.
        """
        if self.kept is None or rel in self.kept:
            return False
        return is_dir or self.has_index or kind_of(rel) not in _RECIPES


def own_git(own: str, root: str, environment: Mapping[str, str], *arguments: str, timeout_s: float = _GIT_S) -> bytes:
    """What git says in an empty repository of ours with the tree as its work tree: no setting of the tree's is read.

    Raises:
        OSError, subprocess.SubprocessError: git is missing, refuses, or does not end.
    """
    alone = ["env", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_OPTIONAL_LOCKS=0",
             "GIT_NO_LAZY_FETCH=1", *(f"{name}={value}" for name, value in environment.items())]  # fmt: skip
    where = ["-C", root, f"--git-dir={own}", f"--work-tree={root}"] if arguments[0] != "init" else []
    return subprocess.run(
        [*alone, "git", *where, *arguments],
        capture_output=True,
        timeout=timeout_s,
        check=True,
        stdin=subprocess.DEVNULL,
    ).stdout


def _listed(root: str, *, with_index: bool) -> tuple[list[str] | None, str]:
    """The files that git would keep; None, and why, where it cannot say."""
    with tempfile.TemporaryDirectory(prefix="gfxgraph-port-") as own:
        index = {"GIT_INDEX_FILE": os.path.join(root, ".git", "index")} if with_index else {}
        listing = ["ls-files", "-z", "--others", "--exclude-standard", *(["--cached"] if with_index else [])]
        try:
            own_git(own, root, {}, "init", "-q", "--bare", "--template=", own)
            said = own_git(own, root, index, *listing)
        except subprocess.CalledProcessError as error:
            return None, f"not applied: git: {printable(error.stderr[-200:].decode('utf-8', 'replace').strip())}"
        except (OSError, subprocess.TimeoutExpired) as error:
            return None, f"not applied: {printable(str(error))[-200:]}"
    return [os.fsdecode(name).rstrip("/") for name in said.split(b"\0") if name], ""


def _link(top: str, path: str, rel: str) -> str:
    """What to say of a link; "" where its target is in the tree and so audited under its own name."""
    target = os.path.realpath(path)
    if not os.path.exists(target):
        return "points nowhere or at itself"
    if target == top or target.startswith(top + os.sep):
        return "a folder already seen under another name" if os.path.isdir(target) else ""
    return "points out of the tree; not followed" if os.path.isdir(target) or kind_of(rel) else ""


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _add(project: Project, rel: str, max_bytes: int) -> None:
    kind = kind_of(rel)
    if not kind:
        return
    try:
        info = os.lstat(os.path.join(project.root, rel))
    except OSError as error:
        project.skipped.append(SkippedFile(rel, "unreadable", str(error.strerror)))
        return
    if not stat.S_ISREG(info.st_mode):
        project.skipped.append(SkippedFile(rel, "special", "no regular file (a pipe, socket or device)"))
        return
    if rel.endswith("configure") and info.st_size > _MAX_CONFIGURE:
        return  # autoconf wrote it, from a configure.ac that is read
    limit = MAX_READ if kind == "requirements" else max_bytes
    if info.st_size > limit:
        project.skipped.append(SkippedFile(rel, "too large", f"{info.st_size} bytes, limit {limit}"))
        return
    project.sources.append(Source(rel, kind, info.st_size))
