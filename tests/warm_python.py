"""A ``python`` that has torch loaded, for tests of programs that use it and not of how a program starts.

    subprocess.run([warm_python(), "-c", program], ...)

Importing torch takes more than a second of CPU; a fork of a process that has imported it takes 20 ms. The executable
asks this pytest worker's server for such a fork, passes its arguments, environment, working directory and standard
streams on, and ends as the fork ended, by a signal, too. The fork runs to the interpreter's own end, with every exit
handler and destructor; its ``sys.executable`` is this executable; nothing of gfxgraph is loaded beforehand. What
acts while Python or torch starts (PYTHONPATH's sitecustomize, torch's search for backends, GFXGRAPH=1) has no effect:
tests of that start Python.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

LAUNCHER = """#!{python} -IS
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    what = json.dumps([sys.argv, dict(os.environ), os.getcwd()]).encode()
    socket.send_fds(server, [len(what).to_bytes(8, "little")], [0, 1, 2])
    server.sendall(what)
    status = int(server.makefile().readline() or -9)
if status < 0:
    signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
"""


@functools.cache
def warm_python() -> str:
    """The executable; the first call starts its server, which ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    address, launcher = str(folder / "server"), folder / "python"
    launcher.write_text(LAUNCHER.format(python=sys.executable, address=address))
    launcher.chmod(0o755)
    # As bare as a program's own start: nothing of gfxgraph in it, and no setting of a test that is running.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GFXGRAPH", "HGB_"))}
    kept["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    kept.pop("PYTHONPATH", None)
    command = [sys.executable, __file__, address, str(launcher)]
    server = subprocess.Popen(command, env=kept, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None and server.stdout is not None
    if server.stdout.readline() != b"ready\n":
        raise RuntimeError("the process that holds torch for tests did not start")
    server.stdout.close()
    atexit.register(server.stdin.close)  # upon which it ends
    return str(launcher)


def _serve(address: str) -> socket.socket:
    """Answer until pytest is gone; returns in the fork that is to run a program, with its connection."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how those end that wait for a program
        while True:
            readable, _, _ = select.select([listener, 0], [], [])
            if 0 in readable:
                os._exit(0)
            connection, _ = listener.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                return connection
            connection.close()


def _await(program: int, connection: socket.socket) -> None:
    """End as the program does: tell its status; where whoever asked is gone, end it."""
    ended = os.pidfd_open(program)
    readable, _, _ = select.select([ended, connection], [], [])
    if ended not in readable:
        os.kill(program, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(f"{status}\n".encode())
    os._exit(0)


def _become(connection: socket.socket) -> list[str]:
    """Take over what a process has from outside; the arguments."""
    length, streams, _, _ = socket.recv_fds(connection, 8, 3)
    with connection.makefile("rb") as sent:
        arguments, environment, folder = json.loads(sent.read(int.from_bytes(length, "little")))
    program = os.fork()
    if program:
        _await(program, connection)
    connection.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.executable = arguments[0]
    return list(arguments[1:])


if __name__ == "__main__":
    import gc
    import runpy

    import torch  # noqa: F401

    del sys.path[0]  # the folder of this file
    gc.freeze()
    at, sys.executable = sys.argv[1:]
    given = _become(_serve(at))
    if given[0] == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv[:] = given[1:]
        runpy.run_module(given[1], run_name="__main__", alter_sys=True)
    else:
        is_text = given[0] == "-c"
        sys.path.insert(0, "" if is_text else os.path.dirname(os.path.abspath(given[0])))
        sys.argv[:] = ["-c", *given[2:]] if is_text else given
        name = "<string>" if is_text else given[0]
        if not is_text:
            __file__ = name
        source = given[1] if is_text else Path(name).read_bytes()
        for mine in set(globals()) - {"__name__", "__file__", "__builtins__", "__spec__", "source", "name"}:
            del globals()[mine]
        exec(compile(source, name, "exec"), globals())
