"""``--help`` in Chinese: the texts of ``help_zh.toml``, in copies of the commands, wrapped by width on screen."""

from __future__ import annotations

import copy
import functools
import re
import tomllib
import unicodedata
from collections.abc import Iterable
from pathlib import Path

import click

_HEADINGS = {"Options": "选项", "Commands": "命令"}
_CLICKS = {"Show this message and exit.": "显示此帮助并退出。", "[default: ": "[默认：", "[required]": "[必需]"}
# Closing punctuation never begins a line.
_TOKEN = re.compile(r"\s+|(?:[\u2e80-\uffef]|[^\s\u2e80-\uffef]+)[，。；：、）？！”]*")


@functools.cache
def texts() -> dict[str, dict[str, str]]:
    """The texts of each command, by its path without ``gfxgraph``, and of ``*``, the options that they share."""
    path = Path(__file__).parent / "help_zh.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def translated(command: click.Command, path: str) -> click.Command:
    """A copy of ``command`` that explains itself in Chinese; ``path`` as in ``texts``."""
    own = texts()[path]
    made = copy.copy(command)
    made.help = own["help"]
    made.context_class = ChineseContext
    made.params = [_parameter(each, own) for each in command.params]
    if isinstance(made, click.Group):
        below = (f"{path} " if path != "gfxgraph" else "").lstrip()
        made.commands = {name: translated(each, below + name) for name, each in made.commands.items()}
    return made


def _parameter(parameter: click.Parameter, own: dict[str, str]) -> click.Parameter:
    if not isinstance(parameter, click.Option) or parameter.name is None:
        return parameter
    made = copy.copy(parameter)
    made.help = own.get(parameter.name) or texts()["*"][parameter.name]
    return made


class Formatter(click.HelpFormatter):
    """Chinese has no spaces to wrap at, and its characters are two columns wide."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, "用法: ")

    def write_heading(self, heading: str) -> None:
        super().write_heading(_HEADINGS.get(heading, heading))

    def write_text(self, text: str) -> None:
        indent = " " * self.current_indent
        paragraphs = []
        for paragraph in re.split(r"\n\s*\n", text):
            if paragraph.startswith("\b"):
                lines = paragraph.splitlines()[1:]
            else:
                lines = wrapped(paragraph, self.width - self.current_indent)
            paragraphs.append("".join(f"{indent}{line}\n" for line in lines))
        self.write("\n".join(paragraphs))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        rows, indent = list(rows), " " * self.current_indent
        first = min(max(width(name) for name, _ in rows), col_max) + col_spacing
        for name, text in rows:
            for english, chinese in _CLICKS.items():
                text = text.replace(english, chinese)
            lines = wrapped(text, max(self.width - self.current_indent - first, 10))
            if width(name) > first - col_spacing:
                self.write(f"{indent}{name}\n")
                name = ""
            self.write(f"{indent}{name}{' ' * (first - width(name))}{lines[0]}\n")
            self.write("".join(f"{indent}{' ' * first}{line}\n" for line in lines[1:]))


class ChineseContext(click.Context):
    formatter_class = Formatter


def width(text: str) -> int:
    """Columns that ``text`` takes on a terminal."""
    return sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text)


def wrapped(text: str, columns: int) -> list[str]:
    """``text`` in lines of at most ``columns``, broken between Chinese characters and at spaces."""
    lines = [""]
    for token in _TOKEN.findall(text.strip()):
        if lines[-1] and width(lines[-1]) + width(token) > columns:
            lines.append("")
        if token.isspace():
            # A line of the source ends between two Chinese characters: they are not parted by a space.
            token = "" if "\n" in token or not lines[-1] else " "
        lines[-1] += token
    return [line.rstrip() for line in lines]
