"""diagnostics.scan: what is found where, however long, frequent or hostile the lines are."""

import time

import pytest

from gfxgraph.diagnostics.explainer import conclude
from gfxgraph.diagnostics.scan import Scanner

# Full of words that expressions lead to, without being a message.
BUSY = "09:12 amdgpu [worker 3] request 7f3a{:x} hip error text: not supported yet, allocator says invalid size {}\n"
FAULT = "Memory access fault by GPU node-{} (Agent handle: 0x55d0) on address {:#x}. Reason: Unknown.\n"


def scanned(*parts: str) -> Scanner:
    scanner = Scanner()
    for part in parts:
        scanner.feed(part.encode())
    scanner.finish()
    return scanner


def busy(n_lines: int) -> str:
    return "".join(BUSY.format(i, i) for i in range(n_lines))


def test_failures_among_settled_lines_are_found() -> None:
    """Lines of a form seen often are left out; a failure between them is not, and its line is right."""
    scanner = scanned(busy(4000), FAULT.format(1, 4096), busy(1000))
    found = next(hit for hit in scanner.hits.values() if "Memory access fault" in hit.text)
    assert (found.line, found.count) == (4001, 1)


def test_settled_failures_are_counted() -> None:
    """Every line of a failure that repeats with other numbers is counted, searched or not."""
    text = "".join(BUSY.format(i, i) + FAULT.format(i % 4, i << 12) for i in range(3000))
    assert max(hit.count for hit in scanned(text).hits.values()) == 3000


def test_a_number_that_belongs_to_the_message_is_no_repetition() -> None:
    """A line that differs from a failure only in such a number is searched for itself."""
    text = "amdgpu: UTCL2 client ID: 0x1\namdgpu: UTCL1 client ID: 0x1\namdgpu: UTCL2 client ID: 0x2\n"
    assert max(hit.count for hit in scanned(text).hits.values()) == 2


def test_a_failure_after_a_passed_test_counts() -> None:
    """What a test provoked that passed does not count, as far as its marks are near; in one that failed it does."""
    provoked = "".join(BUSY.format(i, i) + FAULT.format(1, i) for i in range(5))
    passed = f"[ RUN      ] A.a\n{provoked}[       OK ] A.a (5 ms)\n"
    scanner = scanned(passed, passed, f"[ RUN      ] A.b\n{provoked}[  FAILED  ] A.b (5 ms)\n")
    assert {hit.count for hit in scanner.hits.values() if "Memory access fault" in hit.text} == {5}
    assert not scanned(passed, passed).hits


@pytest.mark.parametrize("unit", ["hipMemcpy", "hipMemcpy invalid argument ", "error: HIP ", "a", " ", "(", "0x1 "])
def test_no_line_of_100_kb_takes_a_second(unit: str) -> None:
    """The search takes a time that grows with the text alone, whatever it repeats."""
    started = time.process_time()
    conclude(scanned("invalid argument " + unit * (100_000 // len(unit)) + "\n"))
    assert time.process_time() - started < 1
