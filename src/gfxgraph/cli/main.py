"""The ``gfxgraph`` command: finds its subcommands by file name and imports only the one that is asked for.

Help must come at once, and explaining an error must work where torch does not, so neither the list of
commands nor their one-line summaries import them: a summary is the first line of the file's docstring.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path
from typing import NoReturn

import click

from gfxgraph import __version__
from gfxgraph.cli import _contract

FOLDER = Path(__file__).parent


class Commands(_contract.Group):
    """A group whose commands are the files beside this one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = (path.stem for path in FOLDER.glob("*.py"))
        return sorted(name.replace("_", "-") for name in names if name != "main" and not name.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            _contract.refuse_name("command", cmd_name, self.list_commands(ctx), "gfxgraph --help")
        module = importlib.import_module(f"gfxgraph.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        if in_chinese():
            # lazily: English is spared the texts
            from gfxgraph.cli import _chinese

            return _chinese.translated(command, cmd_name)
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: object
    ) -> click.Context:
        if in_chinese() and self.context_class is click.Context:
            # lazily: English is spared the texts
            from gfxgraph.cli import _chinese

            return _chinese.translated(self, "gfxgraph").make_context(info_name, args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def summary(self, name: str) -> str:
        return summary(name)


def summary(name: str) -> str:
    """Return what the command does in a line: in English the first of its file's docstring."""
    if in_chinese():
        # lazily: English is spared the texts
        from gfxgraph.cli import _chinese

        return _chinese.texts()[name]["summary"]
    source = (FOLDER / f"{name.replace('-', '_')}.py").read_text(encoding="utf-8")
    # The docstring alone is parsed: the whole file would cost more than all else that --help does.
    body = source.split('"""', 2)
    text = ast.literal_eval(f'"""{body[1]}"""') if len(body) == 3 else ""
    line = str(text).strip().split("\n")[0].removeprefix(f"gfxgraph {name}: ")
    return line[:1].upper() + line[1:]


def in_chinese() -> bool:
    """Whether messages are to be in Chinese."""
    # lazily: commands other than --help ask when they have something to say
    from gfxgraph import config

    return config.language_of() == "zh"


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@click.version_option(__version__, "-V", "--version", message="gfxgraph %(version)s", help="Show the version.")
@click.pass_context
def cli(context: click.Context) -> None:
    """GPU graphs for PyTorch on AMD GPUs, compared with eager execution.

    Exit status: 0 fine, 1 something was found, 2 the command failed, 130 stopped by Ctrl-C; 'run' ends with its
    program's status. GFXGRAPH_LANG=zh shows help and messages in Chinese.

    \b
    Completion, for bash:
      eval "$(_GFXGRAPH_COMPLETE=bash_source gfxgraph)"
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and end with its exit status: see ``_contract``."""
    sys.exit(_contract.run(cli, as_run(sys.argv[1:] if arguments is None else arguments)))


def as_run(arguments: list[str]) -> list[str]:
    """``gfxgraph script.py ...`` is ``gfxgraph run script.py ...``, as in 1.x."""
    return ["run", *arguments] if arguments and arguments[0].endswith(".py") else arguments
