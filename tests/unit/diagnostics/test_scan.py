"""diagnostics.scan: what repeats is counted without a search, and what rests is said."""

from gfxgraph.diagnostics.explain import conclude
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


def test_a_failure_after_a_passed_test_counts() -> None:
    """What a passed test provoked often is forgotten, and found again when a later test provokes it."""
    provoked = "".join(BUSY.format(i, i) + FAULT.format(1, i) for i in range(2500))
    passed = f"[ RUN      ] A.a\n{provoked}[       OK ] A.a (5 ms)\n"
    scanner = scanned(passed, passed, f"[ RUN      ] A.b\n{provoked}[  FAILED  ] A.b (5 ms)\n")
    assert {hit.count for hit in scanner.hits.values() if "Memory access fault" in hit.text} == {2500}
    assert not scanned(passed, passed).hits


def test_near_misses_rest_but_not_at_the_end() -> None:
    """In endless near misses expressions rest, which is said; the message in the last line is found."""
    words = ("unsupported gpu arch gfx", "gfx device kernel not supported on", "hip launch invalid error device")
    near = "".join(
        " ".join(words[(i * 7 + j) % 3] + chr(97 + (i + j) % 26) * (1 + i % 5) for j in range(160)) + "\n"
        for i in range(60)
    )
    scanner = scanned(near, FAULT.format(1, 4096))
    assert scanner.n_rested
    assert any("Memory access fault" in hit.text for hit in scanner.hits.values())
    found = conclude(scanner)
    assert f"({scanner.n_rested} times" in found.format("en")
    assert found.as_dict()["n_rested"] == scanner.n_rested
    assert f"（{scanner.n_rested} 次" in found.format("zh")
