"""cli.explain: pipes, files, JSON, exit status."""

import json
import os
import subprocess
import sys

from click.testing import CliRunner

from gfxgraph.cli import explain as explain_command

FAULT = "Memory access fault by GPU node-1 (Agent handle: 0x1) on address 0x2. Reason: Unknown.\n"


def explain(*arguments, stdin=b"", **environ):
    return subprocess.run(
        [sys.executable, "-m", "gfxgraph", "explain", *arguments],
        input=stdin,
        capture_output=True,
        env=os.environ | {"GFXGRAPH_LANG": "en"} | environ,
    )


def test_a_pipe_passes_every_byte_unchanged():
    """Binary, carriage returns, no final newline: stdout is stdin."""
    data = bytes(range(256)) * 50 + b"\r\n" + FAULT.encode() + b"no newline at the end"
    found = explain(stdin=data)
    assert found.stdout == data
    assert b"illegal_address:" in found.stderr
    assert found.returncode == 0


def test_lines_pass_at_once():
    """A line is through before the next one is written."""
    program = subprocess.Popen(
        [sys.executable, "-m", "gfxgraph", "explain"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert program.stdin and program.stdout
    for number in range(3):
        program.stdin.write(f"line {number}\n".encode())
        program.stdin.flush()
        assert program.stdout.readline() == f"line {number}\n".encode()
    program.stdin.close()
    assert program.wait() == 0


def test_live_explains_before_the_end():
    """With --live the explanation is on stderr while the program still runs."""
    program = subprocess.Popen(
        [sys.executable, "-m", "gfxgraph", "explain", "--live"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert program.stdin and program.stderr
    program.stdin.write(FAULT.encode())
    program.stdin.flush()
    assert program.stderr.readline() == b"\n"
    assert b"illegal_address:" in program.stderr.readline()
    program.stdin.close()
    assert program.wait() == 0


def test_stdout_puts_it_at_the_end_of_the_output():
    """--stdout keeps one stream."""
    found = explain("--stdout", stdin=FAULT.encode())
    assert found.stdout.startswith(FAULT.encode()) and b"illegal_address:" in found.stdout
    assert found.stderr == b""


def test_json_is_one_object_and_nothing_else():
    """In a pipe too; code is null where nothing is known."""
    found = json.loads(explain("--json", stdin=FAULT.encode()).stdout)
    assert found["code"] == "illegal_address" and found["matches"][0]["line"] == 1
    nothing = explain("--json", stdin=b"fine\n")
    assert json.loads(nothing.stdout)["code"] is None and nothing.returncode == 0


def test_exit_status():
    """0 explained, 1 nothing to explain, 2 wrong usage or no such name; in a pipe 0, healthy log or not."""
    assert [explain(stdin=log).returncode for log in (b"fine\n", FAULT.encode())] == [0, 0]
    assert explain("hipErrorNoDevic").returncode == explain("blah").returncode == 2
    assert b"hipErrorNoDevice" in explain("hipErrorNoDevic").stderr
    assert explain("700").returncode == 0
    assert explain("nothing known").returncode == 1
    assert explain("--no-such-option").returncode == 2


def test_a_long_word_is_not_echoed():
    """A word of 120 KB: a sentence, not the word."""
    done = CliRunner().invoke(explain_command.command, ["a" * 120_000])
    assert done.exit_code == 1 and len(done.output) < 400


def test_the_first_call_takes_less_than_a_second(tmp_path):
    """In a fresh container nothing is prepared: what a text needs is read and made within a second of CPU."""
    before = os.times()
    done = explain(FAULT, XDG_CACHE_HOME=str(tmp_path))
    after = os.times()
    assert b"illegal_address" in done.stdout
    assert after.children_user + after.children_system - before.children_user - before.children_system < 1.5


def test_a_file_is_read(tmp_path):
    """A path that exists is a log, not a text."""
    path = tmp_path / "run.log"
    path.write_text("x\n" * 10 + FAULT)
    found = explain(str(path))
    assert b"(line 11)" in found.stdout


def test_a_code_gives_its_page_and_list_gives_all():
    """The page holds notes of all families; the list one line an entry."""
    page = explain("illegal_address").stdout.decode()
    assert "RDNA2:" in page and "CDNA:" in page and "hipErrorIllegalAddress (HIP 700" in page
    listed = explain("--list").stdout.decode().splitlines()
    assert len(listed) > 120 and any(line.startswith("kfd_permission ") for line in listed)
    assert "没有" in explain("--list", GFXGRAPH_LANG="zh").stdout.decode()


def test_a_reader_that_leaves_does_not_break_it():
    """Piped on into head: no traceback, and the explanation still comes."""
    data = (b"filler\n" * 100_000) + FAULT.encode()
    program = subprocess.run(
        f"{sys.executable} -m gfxgraph explain | head -1", shell=True, input=data, capture_output=True
    )
    assert program.stdout == b"filler\n"
    assert b"Traceback" not in program.stderr and b"illegal_address" in program.stderr


def test_it_starts_fast_and_without_torch(start):
    """Under 150 ms of processor time, the interpreter's own start included."""
    assert start("explain", "700") < 0.150
    code = "import sys; from gfxgraph.cli.explain import command; command(['700'], standalone_mode=False)"
    check = f"try:\n    exec({code!r})\nexcept SystemExit:\n    pass\nassert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True).returncode == 0


def test_what_has_no_end_is_read_in_part(monkeypatch):
    """A device as an argument: what was read is told; a pipe that ends is read to its end."""
    monkeypatch.setattr(explain_command, "_MOST_NBYTES", 3 << 20)
    done = CliRunner().invoke(explain_command.command, ["/dev/zero"])
    assert done.exit_code == 1 and "/dev/zero has no end; its first 3 MiB were read" in done.output
    source, sink = os.pipe()
    os.write(sink, b"HIP error: invalid device function\n")
    os.close(sink)
    done = CliRunner().invoke(explain_command.command, [f"/dev/fd/{source}"])
    os.close(source)
    assert done.exit_code == 0 and "no end" not in done.output


def test_what_the_text_explains_itself_is_not_explained_again():
    """The output of a program whose error was explained as it ended, piped on."""
    first = explain(stdin=FAULT.encode())
    again = explain(stdin=FAULT.encode() + first.stderr)
    assert again.stdout == FAULT.encode() + first.stderr and again.stderr == b"" and again.returncode == 0


def test_more_shows_everything():
    """Three lines of advice and about 600 characters, unless asked for the rest."""
    short, whole = (explain(*options, "No HIP GPUs are available").stdout.decode() for options in ((), ("--more",)))
    assert len(short) < 700 < len(whole) and "  what: " in whole and "  what: " not in short


def test_a_gigabyte_takes_less_than_half(tmp_path):
    """The process that reads a log keeps little of it; a tenth of a gigabyte shows it, as 1 GB was measured to."""
    log = tmp_path / "big.log"
    line = b"2026-11-24 12:00:00 ERROR [worker] request failed: not supported, error 5 hipMemcpy\n" * 1000
    with log.open("wb") as file:
        for _ in range(1200):
            file.write(line)
    code = (
        "import sys; sys.argv = ['gfxgraph', 'explain', sys.argv[1]]\n"
        "from gfxgraph.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        # Not ru_maxrss: through exec it keeps what the process that started this one has used.
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(log)], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) < 512 << 10  # mostly for compiling the expressions, once
