"""Facts that one file cannot know, gathered over all files before any is audited.

Enters: a Project with its sources.
Stays out: rules and findings.
"""

from __future__ import annotations

from collections.abc import Callable

from gfxgraph_port import bounded as re
from gfxgraph_port.budget import OutOfTimeError, processor_time
from gfxgraph_port.guards.cpp import Sites, close_over
from gfxgraph_port.model import SkippedFile
from gfxgraph_port.project import Project, UnreadableError
from gfxgraph_port.readers.directives import TooDeepError, arms_of, blank_comments, scan

# A variable, member or parameter, a function or a macro that the project itself calls cudaSomething.
_KEYWORD = r"(?!return\b|else\b|new\b|delete\b|throw\b|case\b|goto\b|typedef\b|sizeof\b|enum\b|const\b|volatile\b)"
_OWN_NAME = re.compile(
    r"^(?![ \t]*(?:typedef|using|extern|//))[^\n;(]*?"
    rf"(?:[\w>][ \t]*[&*]+[ \t]*|\b{_KEYWORD}[A-Za-z_][\w:<>]*[ \t]+)"
    r"(cuda[A-Z]\w*(?<!_t))[ \t]*(?:=(?!=)|;|\{|\[)|"
    r"^[ \t]*(?:template[^\n]*>[ \t]+)?(?:(?:static|inline)[ \t]+){0,3}(?!cuda|CU|extern|return|else|new|throw)"
    r"[A-Za-z_][\w:<>]*[ \t&*]+(cuda[A-Z]\w*(?<!_t))[ \t]*\(|"
    r"^[ \t]*#[ \t]*define[ \t]+(cuda[A-Z]\w*)",
    re.M,
)
_OF_DEVICE = r"__(?:v\w{2,12}[24]|dp4a|ld\w\w|st\w\w|\w+_a?sync|nanosleep|trap|syncwarp|activemask)"
_OWN_FUNCTION = re.compile(rf"^[^\n;#/]*[\w>&*]\s+({_OF_DEVICE})\s*\([^;{{}}()]*\)\s*(?:const\s*)?\{{", re.M)
_MAY_BE_OWN = re.compile(rf"\b(?:{_OF_DEVICE})\b")
_EXTENSION = re.compile(r"\bCUDAExtension\b|cpp_extension\.load\b|\bload_inline\b|cpp_extension import .*\bload\b")
_FRAMEWORK = re.compile(r"(?im)^[ \t]*-?[ \t]*[\"']?(torch|tensorflow|jax)[\"']?(?![\w-])")
_HIP_BUILD = re.compile(
    r"enable_language\(\s*HIP|find_package\(\s*hip\b|LANGUAGES[^)]*\bHIP\b|\bhipcc\b|hip_add_", re.I
)


CUDA_HEADER = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"](?:cu(?:da|blas|sparse|fft|rand|solver)\w*\.h|cub/|cooperative_groups)", re.M
)


def gather(project: Project) -> None:
    """Macros by platform, names of the project's own, and what torch's hipify translates."""
    sites: Sites = {}
    readers: dict[str, Callable[[Project, Sites, str, str], None]] = {
        "cpp": _cpp, "python": _python, "cmake": _build, "make": _build, "shell": _build,
        "requirements": _requirements,
    }  # fmt: skip
    for source in project.sources:
        reader = readers.get(source.kind)
        if reader is None:
            continue
        try:
            text = project.read(source.path)[0]
        except (OSError, UnreadableError):
            continue  # the audit of the file itself reports it
        try:
            with processor_time():
                reader(project, sites, source.path, text)
        except TooDeepError:
            continue  # likewise
        except OutOfTimeError:
            project.skipped.append(SkippedFile(source.path, "too slow", "its macros and names are not known"))
    project.macros = close_over(sites)


def _cpp(project: Project, sites: Sites, path: str, text: str) -> None:
    if path.endswith(".cu") or CUDA_HEADER.search(text):
        project.cuda_sources.add(path)
    if "cuda" in text and _OWN_NAME.search(_lines_with("cuda", text)):
        code = _lines_with("cuda", blank_comments(text))
        project.own_names |= {name for m in _OWN_NAME.finditer(code) for name in m.groups() if name}
    if _MAY_BE_OWN.search(text):
        project.own_names |= set(_OWN_FUNCTION.findall(text))
    if "#" in text and "define" in text and re.search(r"^[ \t]*#[ \t]*(el)?if", text, re.M):
        code = blank_comments(text)
        directives = scan(code)
        arms = arms_of(directives, code.count("\n") + 1)
        for d in directives:
            if d.kind == "define" and (name := d.body.split("(")[0].split()):
                arm = next((a for a in reversed(arms) if a.first_line <= d.line <= a.last_line), None)
                sites.setdefault(name[0], []).append(arm)


def _lines_with(word: str, text: str) -> str:
    return "\n".join([line for line in text.split("\n") if word in line])


def _python(project: Project, sites: Sites, path: str, text: str) -> None:
    if path.endswith("setup.py"):
        _requirements(project, sites, path, text)
    if "torch" not in text or not _EXTENSION.search(text):
        return
    project.has_torch_extension = True
    project.extension_names |= set(re.findall(r"[\"'](?:\w+\.)*([A-Za-z]\w*_(?:cuda|ext|kernels?)\w*)[\"']", text))
    names = re.findall(r"(?<![\w./*-])[\w./*-]+\.(?:cu|cpp|cc|cuh)\b", text)
    project.extension_sources |= {m.rpartition("/")[2] for m in names}


def _requirements(project: Project, sites: Sites, path: str, text: str) -> None:
    project.requires |= {m.lower() for m in _FRAMEWORK.findall(text)} or {"other"}


def _build(project: Project, sites: Sites, path: str, text: str) -> None:
    project.has_hip_build |= bool(_HIP_BUILD.search(text))
