"""Explain a ROCm error: a code, a number, a text, a file, or the output of any program.

Examples: gfxgraph explain 700; gfxgraph explain hipErrorNoBinaryForGpu; gfxgraph explain run.log;
some-engine 2>&1 | gfxgraph explain. In a pipe every line is passed on at once and unchanged; what
was found is said at the end, on stderr.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gfxgraph.cli import _contract
from gfxgraph.diagnostics.explainer import code_of
from gfxgraph.diagnostics.explanation import Explanation, Match
from gfxgraph.diagnostics.expression_index import names
from gfxgraph.hardware import advice

if TYPE_CHECKING:  # a code is explained without them
    from gfxgraph.diagnostics.scan import Scanner

_BLOCK = 1 << 20
_MOST_NBYTES = 1 << 28
"""Of what has no end of its own: a device, a pipe that is given as an argument."""
_LONGEST_NAME, _LONGEST_PATH = 80, 4096
_LOG_SUFFIXES = (".log", ".txt", ".out", ".err", ".json", ".jsonl")
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ, which the fcntl module of some builds lacks


@click.command("explain", short_help=__doc__.split("\n")[0])
@click.argument("subject", nargs=-1)
@click.option("--list", "as_list", is_flag=True, help="List everything that can be explained.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; do not pass lines through.")
@_contract.lang
@click.option("--more", is_flag=True, help="Everything that is known, not only the likeliest.")
@click.option("--live", is_flag=True, help="In a pipe: explain on stderr as soon as something is found.")
@click.option(
    "--facts",
    type=click.Path(),
    help="The machine that failed: a file of gfxgraph doctor --json, or rocm examine --json.",
)
@click.option("--stdout", "to_stdout", is_flag=True, help="In a pipe: explain at the end of the output.")
def command(
    subject: tuple[str, ...],
    as_list: bool,
    as_json: bool,
    lang: str,
    more: bool,
    live: bool,
    facts: str | None,
    to_stdout: bool,
) -> None:
    """Explain an error.

    \b
    gfxgraph explain 700
    gfxgraph explain hipErrorStreamCaptureUnsupported
    gfxgraph explain run.log
    program 2>&1 | gfxgraph explain

    Exit status: 0 explained, 1 nothing to explain, 2 no such file or name. In a pipe it is 0, whatever was found: the
    program's own status is the shell's to keep (pipefail), or gfxgraph run's.
    """
    if as_list:
        if subject:
            raise click.UsageError("--list shows everything; leave out what to explain")
        _list(as_json, lang)
        return
    if not subject and sys.stdin.isatty():
        raise click.UsageError("name what to explain, or pipe a program's output into this command")
    known = _facts(facts) if facts else None
    is_piped = not subject or subject == ("-",)
    if not is_piped:
        found = _subject(subject, lang, known)
        if not found and len(subject) == 1:
            _refuse_missing(subject[0])
        _show(found, as_json, " ".join(subject), lang, more)
    else:
        found, told = _pipe(lang, known, quiet=as_json, live=live)
        if as_json:
            _show(found, as_json, "", lang)
        elif found.warned or (found and not live and found.matches[0].code not in told):
            stream = sys.stdout if to_stdout else sys.stderr
            stream.write(f"\n{found.format(more=more)}\n")
    sys.stdout.flush()
    raise SystemExit(0 if found or is_piped else 1)


def _list(as_json: bool, lang: str) -> None:
    titles = {code: words[lang] for code, words in sorted(names().titles.items())}
    if as_json:
        click.echo(json.dumps(titles, indent=2, ensure_ascii=False))
        return
    width = max(map(len, titles))
    for code, title in titles.items():
        click.echo(f"{code:<{width}}  {title}")


def _show(found: Explanation, as_json: bool, asked: str, lang: str, more: bool = False) -> None:
    if as_json:
        click.echo(json.dumps(found.as_dict(), indent=2, ensure_ascii=False))
    else:
        click.echo(found.format(more=more or bool(code_of(asked))), err=not found)


def _facts(path: str) -> dict[str, object]:
    # lazily: rarely given
    from gfxgraph import files
    from gfxgraph.hardware.facts import of_report

    try:
        return of_report(files.parse_json(files.read_named(Path(path))))
    except (OSError, ValueError) as error:
        _contract.refuse("file_unusable", path=path, problem=error)


def _subject(subject: tuple[str, ...], lang: str, facts: dict[str, object] | None) -> Explanation:
    """Explain arguments: files where all of them are, else a code, a number or a text."""
    # Also a pipe, as in `gfxgraph explain <(dmesg)`; os.path takes words that no path can be.
    if all(os.path.exists(word) and not os.path.isdir(word) for word in subject):
        # lazily: explain must start fast
        from gfxgraph.diagnostics.scan import Scanner

        scanner = Scanner()
        for path in map(Path, subject):
            try:
                # In this order: opening a pipe waits for its writer.
                with _contract.working(f"explain: reading {path}"), path.open("rb") as file:
                    left = _MOST_NBYTES if not path.is_file() else sys.maxsize
                    while left > 0 and (block := file.read(min(_BLOCK, left))):
                        left -= len(block)
                        scanner.feed(block)
                if left == 0:
                    click.echo(_CUT[lang].format(path=path, mib=_MOST_NBYTES >> 20), err=True)
            except OSError as error:
                _contract.refuse("file_unusable", path=path, problem=error.strerror or error)
        return advice.conclude(scanner, lang=lang, facts=facts)
    return advice.explain(" ".join(subject), lang=lang, facts=facts)


_CUT = {
    "en": "explain: {path} has no end; its first {mib} MiB were read",
    "zh": "explain：{path} 没有结尾；已读取前 {mib} MiB",
}


def _refuse_missing(word: str) -> None:
    """A word that nothing is known of may be the name of a file that is not there, or a name misspelt."""
    if not word:
        raise click.UsageError("name what to explain; the argument is empty")
    if os.path.isdir(word):
        _contract.refuse("file_unusable", path=word, problem="it is a folder")
    if os.path.exists(word) or len(word) > _LONGEST_PATH:
        return
    if not any(map(str.isspace, word)) and ("/" in word or Path(word).suffix in _LOG_SUFFIXES):
        _contract.refuse("file_unusable", path=word, problem="no such file")
    # lazily: explain must start fast
    from gfxgraph.diagnostics import statuses

    known = [*names().ranks, *names().aliases]
    known += [each for status in statuses.every() for each in (status.name, *status.aka)]
    if word.isidentifier() and len(word) < _LONGEST_NAME:
        _contract.refuse_name("status or code", word, known, "gfxgraph explain --list")


def _pipe(lang: str, facts: dict[str, object] | None, *, quiet: bool, live: bool) -> tuple[Explanation, set[str]]:
    """Pass stdin on to stdout as it comes and scan it on the way; also the codes that the text explains itself."""
    # Ctrl-C reaches the whole pipeline: the engine dies of it, and its last words are to be explained.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source, sink = sys.stdin.fileno(), sys.stdout.fileno()
    try:
        fcntl.fcntl(source, _SET_PIPE_SIZE, _BLOCK)
    except OSError:
        pass  # not a pipe, or a smaller limit: only speed is at stake
    # lazily: explain must start fast
    from gfxgraph.diagnostics.scan import Scanner

    scanner = Scanner()
    said: set[str] = set()
    waiting: list[bytes] = []
    n_waiting = 0
    while block := os.read(source, _BLOCK):
        if not quiet and not _write(sink, block):
            quiet = True  # the reader of our output has gone; go on reading, the program may need it
        waiting.append(block)
        n_waiting += len(block)
        # Scanning waits for a large block while more is there, so that it costs little a line.
        if n_waiting >= _BLOCK or not select.select([source], [], [], 0)[0]:
            scanner.feed(b"".join(waiting))
            waiting.clear()
            n_waiting = 0
            if live:
                _say_new(scanner, said, lang)
    scanner.feed(b"".join(waiting))
    scanner.finish()
    if live:
        _say_new(scanner, said, lang)
    return advice.conclude(scanner, lang=lang, facts=facts), scanner.told


def _say_new(scanner: Scanner, said: set[str], lang: str) -> None:
    for code, hit in scanner.hits.items():
        if code not in said and hit.strength > 0:
            match = Match(hit.code, hit.text, hit.line, hit.count)
            sys.stderr.write(f"\n{Explanation((match,), (), lang).format()}\n\n")
            sys.stderr.flush()
            said.add(code)


def _write(sink: int, block: bytes) -> bool:
    """Write all of ``block``; False if the reader is gone."""
    view = memoryview(block)
    try:
        while view:
            view = view[os.write(sink, view) :]
    except BrokenPipeError:
        return False
    return True
