"""Assemble the documentation: the pages of ``docs/`` and those made from the code; check every link.

    python tools/make_docs.py [FOLDER]     (build/docs)

Made from the code: the commands and the settings, which are kept in the repository, too (this tool writes them);
the errors by group, the rules of the port audit by phase, the decisions and the public interface, which are not: in
the repository pages link to the sources of these, on the site to the pages made of them. Files of the repository
that pages link to (results of measurements, sources) are copied to ``files``. ``mkdocs build`` makes the site.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import make_error_pages

import gfxgraph
from gfxgraph import config
from gfxgraph.cli import _chinese
from gfxgraph.cli.main import Commands
from gfxgraph.diagnostics.entries import FOLDER, codes

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
ERROR = re.compile(r"(?<=\()((?:[\w./-]*errors/)?)(\w+)\.md(?=\))")
CATALOGUE = "src/gfxgraph/diagnostics/catalogue"
MADE_OF = {
    CATALOGUE: "errors/index.md",
    "src/gfxgraph_port/rules": "rules/index.md",
    "docs/decisions": "decisions/index.md",
    "src/gfxgraph/__init__.pyi": "api.md",
}
"""What a page of the repository links to, and the page of the site that is made of it."""
KEPT = ("commands.md", "zh/commands.md", "settings.md", "zh/settings.md")
"""Made pages that are in the repository, too: people read them there."""
GROUPS = {
    "own": ("Errors of gfxgraph itself", "gfxgraph 自身的错误", -1),
    "host": ("The machine: drivers, permissions, containers, packages", "机器：驱动、权限、容器、软件包", 19),
    "libraries": ("Libraries and builds", "库与构建", 29),
    "components": ("Components: compilers, engines, frameworks", "组件：编译器、引擎、框架", 39),
    "device": ("On the device", "设备上", 49),
    "consequences": ("What follows from another failure", "其他失败的后果", 10**9),
}
"""The pages on errors: titles, and up to which rank of the catalogue."""
COMPLETION = """## {title}

```sh
eval "$(_GFXGRAPH_COMPLETE=bash_source gfxgraph)"     # in ~/.bashrc
eval "$(_GFXGRAPH_COMPLETE=zsh_source gfxgraph)"      # in ~/.zshrc
_GFXGRAPH_COMPLETE=fish_source gfxgraph | source      # in ~/.config/fish/config.fish
```
"""
CONTRACT = """All commands behave alike:

| Exit status | Meaning |
| --- | --- |
| 0 | no problem |
| 1 | something was found: a failed check, a finding, a fault; or there was nothing to explain |
| 2 | the command failed; the message says why, and what to do |
| 130 | stopped by Ctrl-C |

`gfxgraph run` ends with its program's status. With `--json` errors are JSON, too:
`{"error": {"code": ..., "text": ...}}`. `--simulate[=PROFILE]` means the same everywhere. `GFXGRAPH_LANG=zh` gives
Chinese messages, `HGB_LOG_LEVEL=debug` tracebacks.
"""


COMMANDS_ZH = (
    "命令",
    """所有命令遵守同一约定：

| 退出状态 | 含义 |
| --- | --- |
| 0 | 正常 |
| 1 | 有发现：检查未通过、有问题、有错误，或没有可解释的内容 |
| 2 | 命令无法完成；消息说明原因和处理方法 |
| 130 | 被 Ctrl-C 中止 |

`gfxgraph run` 以程序自己的状态结束。`--json` 输出 JSON，出错时也是：`{"error": {"code": ..., "text": ...}}`。
`--simulate[=PROFILE]` 在各处含义相同。`GFXGRAPH_LANG=zh` 使用中文，`HGB_LOG_LEVEL=debug` 显示 traceback。
""",
    "命令补全",
)
SETTINGS = (
    "# Settings\n\nEnvironment variables, read when gfxgraph starts. `gfxgraph doctor` reports a value that is not "
    "valid and a\nmisspelled name.",
    "# 设置\n\n环境变量，在 gfxgraph 启动时读取。`gfxgraph doctor` 会报告无效的值和拼错的名称。",
)


def commands_page(lang: str) -> str:
    """Every command's help."""
    title, contract, completion = COMMANDS_ZH if lang == "zh" else ("Commands", CONTRACT, "Completion")
    parts = [f"# {title}\n", contract, COMPLETION.replace("{title}", completion)]
    for path, command in _commands(Commands("gfxgraph")):
        told = _chinese.translated(command, path) if lang == "zh" else command
        context = told.context_class(told, info_name=f"gfxgraph {path}", help_option_names=["-h", "--help"])
        told._help_option = None  # click keeps the first one made, whose names may be another context's
        parts.append(f"## gfxgraph {path}\n\n```text\n{told.get_help(context)}\n```\n")
    return "\n".join(parts)


def _commands(group: click.Group, above: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield above + name, command
        if isinstance(command, click.Group):
            yield from _commands(command, f"{above}{name} ")


def settings_page(lang: str) -> str:
    """Every environment variable: its values, its default and what it does."""
    told = tomllib.loads((DOCS / "settings.toml").read_text(encoding="utf-8"))
    groups, words = told.pop("groups"), told.pop("zh")
    is_chinese = lang == "zh"
    parts = [SETTINGS[is_chinese]]
    heads = "| 变量 | 取值 | 默认 | 作用 |" if is_chinese else "| Variable | Values | Default | What it does |"
    for group, titles in groups.items():
        parts.append(f"\n## {titles[is_chinese]}\n\n{heads}\n| --- | --- | --- | --- |")
        for name, row in told.items():
            if row["group"] == group:
                typed = [config.VARIABLES.get(name) or row["values"], row["default"]]
                values, default = [words.get(each, each) for each in typed] if is_chinese else typed
                cells = (f"`{name}`", values.replace("|", "\\|"), default, row[lang].replace("](zh/", "]("))
                parts.append(f"| {' | '.join(cells)} |")
    return "\n".join([*parts, ""])


def api_page() -> str:
    """The public names by the room they come from, as directives of mkdocstrings."""
    rooms: dict[str, list[str]] = defaultdict(list)
    for name, module in gfxgraph.exports().items():
        source = ROOT / "src" / (module.replace(".", "/") + ".py")
        tree = ast.parse(source.read_text(encoding="utf-8"))
        named = {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef)}
        named |= {ast.unparse(each.targets[0]) for each in tree.body if isinstance(each, ast.Assign)}
        # What is made at run time has no docstring of its own in the source: its module's is shown.
        text = f"::: {module}.{name}" if name in named else ast.get_docstring(tree) or ""
        rooms[module.split(".")[1]].append(f"### {name}\n\n{text}\n")
    parts = [f"## {room}\n\n" + "\n".join(names) for room, names in rooms.items()]
    return "# API\n\nEvery public name, from its docstring.\n\n" + "\n".join(parts)


def error_pages() -> dict[str, str]:
    """The entries of the catalogue, in both languages: a list of all, and a page for each group."""
    made = {}
    for lang, folder in (("en", "errors"), ("zh", "zh/errors")):
        made[f"{folder}/index.md"] = one_error_a_page(make_error_pages.markdown_index(lang))
        for group, titles in GROUPS.items():
            entries = [make_error_pages.markdown(code, lang) for code in codes() if group_of(code) == group]
            made[f"{folder}/{group}.md"] = f"# {titles[lang == 'zh']}\n\n#" + "\n#".join(entries)
    return made


@cache
def group_of(code: str) -> str:
    """The page on which an error stands: gfxgraph's own, or how near to the cause it lies."""
    table = tomllib.loads((FOLDER / f"{code}.toml").read_text(encoding="utf-8"))
    if table.get("fields"):
        return "own"
    return next(group for group, (_, _, most) in GROUPS.items() if table.get("rank", 50) <= most)


def one_error_a_page(text: str) -> str:
    """Text that links to an error as if it had a page of its own, with the place where it stands."""
    known = set(codes())
    return ERROR.sub(lambda m: f"{m[1]}{group_of(m[2])}.md#{m[2]}" if m[2] in known else m[0], text)


def rule_pages() -> dict[str, str]:
    """The rules of the port audit, a page a phase, in both languages; none where its parsers are not installed."""
    try:
        from gfxgraph_port.phases import PHASES, word
        from gfxgraph_port.registry import load
    except ImportError:
        return {}
    made = {}
    for lang, folder in (("en", "rules"), ("zh", "zh/rules")):
        lines = ["# 移植审计的规则\n" if lang == "zh" else "# Rules of the port audit\n"]
        for phase, titles in PHASES.items():
            heading = f"{word('phase', lang)} {phase}: {titles[lang == 'zh']}"
            rules = [each.rule for each in load() if each.rule.phase == phase]
            lines += [f"\n## {heading}\n"]
            for rule in rules:
                anchor = f"{rule.id}-{rule.code}".lower()
                lines.append(f"- [{rule.id} {rule.code}](phase-{phase}.md#{anchor}): {_plain(rule.text(lang).title)}")
            parts = "\n#".join(_rule_page(rule, lang, word) for rule in rules)
            made[f"{folder}/phase-{phase}.md"] = f"# {heading}\n\n#{parts}"
        made[f"{folder}/index.md"] = "\n".join(lines) + "\n"
    return made


def _rule_page(rule: object, lang: str, word: object) -> str:
    text = rule.text(lang)  # type: ignore[attr-defined]
    say = lambda key: word(key, lang)  # type: ignore[operator]  # noqa: E731
    lines = [
        f"# {rule.id} {rule.code}\n",  # type: ignore[attr-defined]
        f"**{_plain(text.title)}**\n",
        f"{say('severity')}: {say(rule.severity.label)} · {say('fix')}: {say(rule.fix.value)} · "  # type: ignore[attr-defined]
        f"{say('affects')}: {_plain(rule.archs.label)}\n",  # type: ignore[attr-defined]
        f"{say('why')}: {_plain(text.why)}\n",
        f"{say('do')}: {_plain(text.do)}\n",
    ]
    if rule.versions:  # type: ignore[attr-defined]
        lines.append(f"ROCm/torch: {rule.versions}\n")  # type: ignore[attr-defined]
    headings = {"bad": ("Fires on", "会触发"), "good": ("Does not fire on", "不会触发")}
    for kind, titles in headings.items():
        lines.append(f"### {titles[lang == 'zh']}\n")
        for path, body in rule.files(kind).items():  # type: ignore[attr-defined]
            lines.append(f"`{path}`\n\n~~~~ text\n{body.rstrip()}\n~~~~\n")
    return "\n".join(lines)


def _plain(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*").replace("__", "\\_\\_").replace("[", "\\[")


def decisions_page() -> str:
    """The list of decisions, by room."""
    rows = []
    for path in sorted((DOCS / "decisions").glob("*.md")):
        title, *records = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        rows.append(f"- [{_plain(title.partition(': ')[2])}]({path.name}): {'; '.join(map(_plain, records))}")
    return "# Decisions\n\nWhat was chosen, why, and what would change it.\n\n" + "\n".join(rows) + "\n"


def made_pages() -> dict[str, str]:
    """Every page that is made from the code, by its path."""
    return {
        "commands.md": commands_page("en"),
        "zh/commands.md": commands_page("zh"),
        "settings.md": settings_page("en"),
        "zh/settings.md": settings_page("zh"),
        "decisions/index.md": decisions_page(),
        "api.md": api_page(),
        **error_pages(),
        **rule_pages(),
    }


def written_pages() -> dict[str, str]:
    """The pages of docs/, by path; docs/README.md is the site's first page."""
    found = {
        (name := path.relative_to(DOCS).as_posix()): for_the_site(name, path.read_text(encoding="utf-8"))
        for path in sorted(DOCS.rglob("*.md"))
    }
    found["index.md"] = found.pop("README.md")
    return found


def for_the_site(name: str, text: str) -> str:
    """The page ``name`` with its links to sources led to the pages that are made of them, in its language."""
    folder = os.path.dirname(name)

    def moved(match: re.Match[str]) -> str:
        path = os.path.normpath(os.path.join("docs", folder, match[2].partition("#")[0]))
        page, lang = MADE_OF.get(path, ""), "zh/" if name.startswith("zh/") else ""
        if os.path.dirname(path) == CATALOGUE and path.endswith(".toml"):
            code = Path(path).stem
            page = f"errors/{group_of(code)}.md#{code}"
        if not page:
            return match[0]
        page = lang + page if page.startswith(("errors/", "rules/")) else page
        return f"{match[1]}{Path(os.path.relpath(page, folder or '.')).as_posix()}{match[3]}"

    return LINK.sub(moved, text)


def dead_in_the_repository() -> list[str]:
    """Links of pages that lead nowhere where the repository is read as it is."""
    dead = []
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("tests/**/README.md")]
    for path in sorted(set(pages)):
        if path.parent.name == "changelog.d" and path.name != "README.md":
            continue  # its text will stand in CHANGELOG.md
        for target in links(path.read_text(encoding="utf-8")):
            file = path.parent / target.partition("#")[0]
            if "://" not in target and not target.startswith(("#", "mailto:")) and not file.exists():
                dead.append(f"{path.relative_to(ROOT)}: {target}")
    return dead


def dead_on_the_site(folder: Path) -> list[str]:
    """Links and images of the assembled pages that are not there."""
    dead = []
    for path in sorted(folder.rglob("*.md")):
        for target in links(path.read_text(encoding="utf-8")):
            file = path.parent / target.partition("#")[0]
            if "://" not in target and not target.startswith(("#", "mailto:")) and not file.is_file():
                dead.append(f"{path.relative_to(folder)}: {target}")
    return dead


def anchors(text: str) -> set[str]:
    """The names that headings of a page can be reached by, as python-markdown makes them."""
    found = set()
    for title in re.findall(r"^#+ +(.+?) *$", FENCE.sub("", text), re.MULTILINE):
        plain = re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title)).strip().lower()
        found.add(re.sub(r"[-\s]+", "-", plain))
    return found


def links(text: str) -> list[str]:
    """Where a page's links lead; code holds none."""
    return [match[2] for match in LINK.finditer(CODE.sub("", FENCE.sub("", text)))]


def dead_links(found: dict[str, str]) -> list[str]:
    """The links of the pages that lead nowhere: no page, no such heading, no file of the repository."""
    dead = []
    for name, text in found.items():
        for target in links(text):
            if "://" in target or target.startswith("mailto:"):
                continue
            path, _, anchor = target.partition("#")
            page = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path else name
            page = "index.md" if page == "README.md" else page
            if page in found:
                if anchor and anchor not in anchors(found[page]):
                    dead.append(f"{name}: {target}: no such heading")
            elif not (DOCS / os.path.dirname(name) / path).exists():
                dead.append(f"{name}: {target}")
    return dead


def assemble(found: dict[str, str], folder: Path) -> None:
    """Write the pages to ``folder``, with copies of the repository's files that they link to."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in found.items():

        def moved(match: re.Match[str], name: str = name) -> str:
            path, _, anchor = match[2].partition("#")
            file = DOCS / os.path.dirname(name) / path
            if "://" in path or not path:
                return match[0]
            if os.path.normpath(os.path.join(os.path.dirname(name), path)) == "README.md":
                return match[1] + match[2].replace("README.md", "index.md") + match[3]
            is_page = file.suffix == ".md" or DOCS / "images" in file.parents
            if (DOCS in file.resolve().parents and is_page) or not file.exists():
                return match[0]
            if file.is_dir():
                return match[0][1:].partition("]")[0]  # a folder is no page: the words alone
            copy = folder / "files" / file.resolve().relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            # As text: what is Markdown there would be a page here.
            copy = copy.with_suffix(copy.suffix + ".txt") if copy.suffix == ".md" else copy
            shutil.copyfile(file, copy)
            start = folder / os.path.dirname(name)
            return (
                match[1] + Path(os.path.relpath(copy, start)).as_posix() + (f"#{anchor}" if anchor else "") + match[3]
            )

        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(LINK.sub(moved, text), encoding="utf-8")
    for file in (*(DOCS / "images").glob("*"), DOCS / "site.css"):
        copy = folder / file.relative_to(DOCS)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, copy)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=ROOT / "build" / "docs")
def main(folder: Path) -> None:
    """Assemble the documentation in FOLDER, build/docs by default; check every link."""
    made = made_pages()
    for name in KEPT:
        (DOCS / name).write_text(made[name], encoding="utf-8")
    found = {**written_pages(), **made}
    assemble(found, folder)
    dead = dead_links(found) + dead_in_the_repository() + dead_on_the_site(folder)
    shown = folder.relative_to(ROOT) if ROOT in folder.parents else folder
    print(f"docs: {len(found)} pages written to {shown}")
    if dead:
        sys.exit("docs: links that lead nowhere:\n  " + "\n  ".join(dead))


if __name__ == "__main__":
    main()
