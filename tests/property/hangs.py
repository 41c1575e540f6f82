"""Plants hangs, and what only looks like one, in a terminal, and compares what comes out with what a user must see.

Run:  python -m tests.property.hangs [--only WORDS] [--out FILE] [--show]

Cases: hang_programs.py. Ten minutes on two busy cores.
"""

from __future__ import annotations

import argparse
import json
import os
import platform as machine
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from tests.property.hang_programs import CASES, LIMIT_S, OF_RANKS, PRELUDE, Case

ROOT = Path(__file__).parents[2]
AT_HANG, READY = b"AT_HANG", b"READY"
REPORT = re.compile(rb"capture_hang: |replay_hang: ")
V620 = {"platform": "hip", "rocm": "7.2.4", "hip": "7.2.4", "torch": "2.9.0", "archs": ["gfx1030"], "n_gpus": 2}
ENDS_AFTER_S, ENDS_AFTER_HANG_S = 120.0, 12.0


def commands(case: Case, program: Path, src: str) -> list[tuple[list[str], dict[str, str]]]:
    """The command and the environment of each rank."""
    before = [*case.options] if "--" in case.options else [*case.options, f"--simulate={case.profile}"]
    if "--" in before:
        before.insert(0, f"--simulate={case.profile}")
    options = [word.replace("{python}", sys.executable) for word in before]
    command = [sys.executable, "-m", "gfxgraph", "run", *options, str(program)]
    common = {
        **os.environ,
        "PYTHONPATH": src,
        "OMP_NUM_THREADS": "1",
        **{name: value.replace("{folder}", str(program.parent)) for name, value in case.environment.items()},
    }
    if case.n_ranks == 1:
        return [(command, common)]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(case.n_ranks)}
    return [(command, common | ranks | {"RANK": str(rank)}) for rank in range(case.n_ranks)]


def run(case: Case, src: str) -> tuple[str, int | None, float | None]:
    """What the terminal showed, the last status that is not 0, and the time from the hang to the report."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "prog.py"
        program.write_text((OF_RANKS if case.n_ranks > 1 else PRELUDE) + case.body, "utf-8")
        (program.parent / "environment.json").write_text(json.dumps(V620), "utf-8")
        ours, theirs = pty.openpty()
        processes = []
        for command, environment in commands(case, program, src):
            processes.append(
                subprocess.Popen(
                    command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder,
                    start_new_session=True, preexec_fn=_take_terminal if case.n_ranks == 1 else None,
                )
            )  # fmt: skip
        os.close(theirs)
        try:
            return _watch(case, processes, ours)
        finally:
            for process in processes:
                _signal(process, signal.SIGKILL)
                process.wait()
            os.close(ours)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    if process.poll() is None:
        os.killpg(process.pid, number)


def _watch(
    case: Case, processes: list[subprocess.Popen[bytes]], terminal: int
) -> tuple[str, int | None, float | None]:
    seen, began = b"", time.monotonic()
    hung_at = told_at = continue_at = None
    has_sent = False
    while time.monotonic() - began < ENDS_AFTER_S:
        if select.select([terminal], [], [], 0.05)[0]:
            try:
                data = os.read(terminal, 1 << 16)
            except OSError:  # everybody has closed it
                break
            seen += data
        elif all(process.poll() is not None for process in processes):
            break
        now = time.monotonic()
        if hung_at is not None and now - hung_at > ENDS_AFTER_HANG_S:
            break
        if hung_at is None and AT_HANG in seen:
            hung_at = now
        if told_at is None and REPORT.search(seen.rpartition(READY)[2]):
            told_at = now
        if case.send is not None and hung_at is not None and not has_sent and now - hung_at > case.send[0]:
            has_sent = True
            what = case.send[1]
            if what.startswith("ctrl-c"):
                os.write(terminal, b"\x03")
                time.sleep(0.3)
                os.write(terminal, b"\x03" if "twice" in what else b"")
            elif what.startswith("stop"):
                _signal(processes[0], signal.SIGSTOP)
                continue_at = now + float(what.split()[1])
            else:
                _signal(processes[0], getattr(signal, what))
        if continue_at is not None and now > continue_at:
            continue_at = None
            _signal(processes[0], signal.SIGCONT)
    if all(process.poll() is not None for process in processes) or select.select([terminal], [], [], 0)[0]:
        for process in processes:
            process.wait(5)
    codes = [process.poll() for process in processes]
    status = None if None in codes else max((code if code >= 0 else 128 - code for code in codes), default=0)
    text = seen.decode("utf-8", "replace").replace("\r\n", "\n").replace("AT_HANG\n", "")
    before, _, text = text.rpartition("READY\n")
    text += "\n".join(line for line in before.splitlines() if "Exception in thread" in line)
    took = told_at - hung_at if told_at is not None and hung_at is not None else None
    return text, status, took


def verdict(case: Case, text: str, status: int | None, took_s: float | None) -> list[str]:
    """What is wrong; empty if all is as it must be."""
    wrong = [f"not there: {pattern}" for pattern in case.says if not re.search(pattern, text)]
    wrong += [f"there: {found.group(0)[:100]!r}" for pattern in case.never if (found := re.search(pattern, text))]
    if case.status is not None and status != case.status:
        wrong.append(f"status {status}, not {case.status}")
    if case.within_s is not None and (took_s is None or not LIMIT_S * 0.9 <= took_s <= LIMIT_S + case.within_s):
        wrong.append(f"the report came after {took_s and round(took_s, 2)} s")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose name has these words")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--from", dest="first", type=int, default=0, help="number of the first case")
    parser.add_argument("--src", default=str(ROOT / "src"), help="where gfxgraph is taken from")
    parser.add_argument("--before", type=Path, help="what an earlier run wrote, of another --src")
    parser.add_argument("--show", action="store_true", help="print what the terminal showed")
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for case in CASES[asked.first :]:
        if asked.only not in case.name:
            continue
        text, status, took_s = run(case, asked.src)
        wrong = verdict(case, text, status, took_s)
        rows.append({"case": case.name, "wrong": wrong, "reported after s": took_s and round(took_s, 2)})
        print(
            f"{'ok   ' if not wrong else 'WRONG'} {case.name}" + "".join(f"\n        {each}" for each in wrong),
            flush=True,
        )
        if asked.show:
            print(text)
    table = {
        "what": "hangs planted below gfxgraph run --watch=1, in a terminal, and what only looks like one",
        "device": "none (simulator)",
        "torch": torch.__version__,
        "python": machine.python_version(),
        "limit_s": LIMIT_S,
        "programs": len(rows),
        "as they must be": sum(not row["wrong"] for row in rows),
        "rows": rows,
    }
    if asked.before:
        old = json.loads(asked.before.read_text("utf-8"))
        first = {row["case"]: row["wrong"] for row in old["rows"]}
        both = [row for row in rows if row["case"] in first]
        table["at first sight"] = {
            "programs": len(both),
            "as they must be": sum(not first[row["case"]] for row in both),
        }
        for row in both:
            row["wrong at first sight"] = first[row["case"]]
    if asked.out:
        asked.out.write_text(json.dumps(table, indent=1) + "\n", "utf-8")
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
