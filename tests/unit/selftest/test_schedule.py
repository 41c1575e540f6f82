"""Cases beside each other: order, who runs alone, and what a failure in company counts as."""

from __future__ import annotations

import string
import threading
import time
from collections.abc import Callable, Iterable

import pytest

from gfxgraph.selftest.outcome import CaseResult, Listed, Outcome
from gfxgraph.selftest.schedule import Schedule, how_many

PASS, FAIL, CRASH, HANG, SKIP = Outcome.PASS, Outcome.FAIL, Outcome.CRASH, Outcome.HANG, Outcome.SKIP


class Place:
    """A machine on which each case ends as scripted: one outcome per run, the last for all later ones."""

    def __init__(self, alone: Iterable[str] = (), answers: Iterable[bool] = (), **script: list[Outcome]) -> None:
        self.alone, self.script, self._answers = set(alone), script, iter(answers)
        self.log: list[str] = []
        self.running: set[str] = set()
        self.company: dict[str, set[str]] = {}
        self.n_most = 0
        self.is_closed = False
        self._lock = threading.Lock()

    def run(self, case: Listed) -> CaseResult:
        with self._lock:
            self.log.append(case.name)
            self.running.add(case.name)
            self.n_most = max(self.n_most, len(self.running))
            for name in self.running:
                self.company.setdefault(name, set()).update(self.running - {name})
        # The first of a round takes longest: results come in the list's order all the same.
        time.sleep(0.06 if case.name == "a" else 0.02)
        with self._lock:
            self.running.remove(case.name)
            ends = self.script.get(case.name, [PASS])
            outcome = ends.pop(0) if len(ends) > 1 else ends[0]
        return CaseResult(case.name, case.fact, outcome, "" if outcome is PASS else f"{outcome} it was", 1.0, 0)

    def results(self, names: str, n_beside: int = 3, is_device: bool = True) -> dict[str, CaseResult]:
        answers: Callable[[], bool] | None = (lambda: next(self._answers)) if is_device else None
        schedule = Schedule(self.run, answers, self.close, n_beside)
        found = list(schedule.results([Listed(name, f"Fact {name}.", 5, name in self.alone) for name in names]))
        assert [result.name for result in found] == list(names) and self.is_closed
        return {result.name: result for result in found}

    def close(self) -> None:
        self.is_closed = True


def test_side_by_side_and_alone():
    """As many run as may, in the list's order; beside one that is to be alone runs nothing."""
    place = Place(alone="dg")
    results = place.results("abcdefgh")
    assert {result.outcome for result in results.values()} == {PASS}
    assert place.n_most == 3 and place.company["a"] >= {"b", "c"}
    assert not place.company.get("d") and not place.company.get("g") and place.company["e"] == {"f"}
    assert sorted(place.log) == list("abcdefgh")


def test_one_at_a_time():
    """Where there is room for one, nothing has company."""
    place = Place()
    place.results("abc", n_beside=1)
    assert place.n_most == 1 and place.log == list("abc")


def test_failure_is_run_again_alone():
    """What it does alone is its outcome; where it passes alone it stays a failure, and says so. The rest goes on."""
    place = Place(b=[FAIL], e=[FAIL, PASS])
    results = place.results("abcdefgh")
    assert results["b"].outcome is FAIL and results["b"].reason == "fail it was"
    assert (
        results["e"].outcome is FAIL
        and "fail it was" in results["e"].reason
        and "passed alone" in results["e"].reason
    )
    assert all(results[name].outcome is PASS for name in "acdfgh")
    assert place.log.count("b") == 2 and place.log.count("e") == 2 and len(place.log) == 10


def test_neighbours_of_a_crash():
    """One that crashes alone as well has taken its neighbours along; after it the rest goes one by one."""
    place = Place(answers=[True, True], b=[CRASH, CRASH], c=[CRASH, PASS])
    place.company.clear()
    results = place.results("abcdefgh")
    assert results["b"].outcome is CRASH and results["c"].outcome is PASS
    assert "beside b" in results["c"].reason and "crash it was" in results["c"].reason
    later = place.log[place.log.index("b", place.log.index("b") + 1) :]
    assert all(results[name].outcome is PASS for name in "adefgh") and "h" in later
    assert not place.company.get("h") and not place.company.get("g")


def test_crash_that_nobody_owns_stays():
    """A crash in company that no case repeats alone is not talked away."""
    results = Place(answers=[True], b=[CRASH, PASS], c=[FAIL, PASS]).results("abcd")
    assert results["b"].outcome is CRASH and "passed alone" in results["b"].reason
    assert results["c"].outcome is FAIL


def test_device_that_stops_answering():
    """After a crash in company the device is asked; where it is silent, what has not run is skipped."""
    place = Place(answers=[False], b=[HANG])
    results = place.results("abcdefgh")
    assert results["b"].outcome is HANG and "could not be run again" in results["b"].reason
    assert results["h"].outcome is SKIP and results["h"].reason == "the GPU has not answered since the case b"
    assert place.log.count("b") == 1 and "h" not in place.log


def test_simulated_failures_are_not_repeated():
    """Without a device nothing is run twice and nothing is left out."""
    place = Place(a=[CRASH], b=[FAIL, PASS])
    results = place.results("abcdef", is_device=False)
    assert results["a"].outcome is CRASH and results["b"].outcome is FAIL and sorted(place.log) == list("abcdef")


def test_stopping_closes():
    """Whoever stops listening, or is interrupted, leaves nothing running."""
    place = Place()
    cases = [Listed(n, "", 5) for n in string.ascii_letters]  # far more than end before the first is handed on
    results = Schedule(place.run, lambda: True, place.close, 2).results(cases)
    assert next(results).name == "a"
    results.close()
    assert place.is_closed and not place.running and "Z" not in place.log


@pytest.mark.parametrize(
    ("memory_free_mib", "cores", "n_beside", "n_ahead"),
    [(80000, 16, 4, 8), (80000, 8, 4, 4), (15000, 4, 2, 2), (80000, 2, 1, 1), (2000, 16, 1, 2), (0, 1, 1, 1)],
)
def test_how_many(memory_free_mib, cores, n_beside, n_ahead):
    """As many as cores and free device memory allow, at most four; never fewer than one."""
    assert how_many(memory_free_mib, cores) == (n_beside, n_ahead)
