"""Which cases of the self-test run at the same time, and what a failure among them means.

Problem: cases one after another leave most of the machine idle; cases side by side blur who did what. A case
that takes the GPU with it takes its neighbours too, and a failure should have one author.

Idea: cases run side by side in rounds of neighbours in the list, and results come in the list's order. At the
first failure no further case of the round is begun; those on their way end, and each that went wrong is run
again with nothing beside it. What it does then is its outcome, with two exceptions that keep a rare failure
from being talked away:

- one that was wrong in company and is right alone stays what it was, and says so,
- unless a neighbour crashed or hung again alone: then that neighbour is the author.

After a crash or a hang the GPU is asked whether it answers. Where it does not, the rest is skipped with that
reason instead of being counted against graphs; where it does, the rest goes on one by one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import takewhile

from gfxgraph.selftest.outcome import CaseResult, Listed, Outcome
from gfxgraph.selftest.processes import NEEDED_MIB

MAX_BESIDE = 4


def how_many(memory_free_mib: int, cores: int) -> tuple[int, int]:
    """(cases at the same time, processes to prepare meanwhile): each keeps a core busy, each case takes memory."""
    n_beside = max(1, min(MAX_BESIDE, cores // 2, memory_free_mib // NEEDED_MIB))
    return n_beside, max(1, min(2 * n_beside, cores - n_beside))


class Schedule:
    """One way through a list of cases.

    Args:
        run: runs one case; may be called from several threads.
        answers: whether the device answers; None where there is no device that a case could harm. Then no case
            is run again, and none is left out.
        close: ends every process at once, so that each ``run`` returns or raises.
        n_beside: how many cases may run at the same time.
    """

    def __init__(
        self,
        run: Callable[[Listed], CaseResult],
        answers: Callable[[], bool] | None,
        close: Callable[[], None],
        n_beside: int,
    ) -> None:
        self._run = run
        self._answers = answers
        self._close = close
        self._n_beside = n_beside
        self._is_trouble = threading.Event()
        self._silent_since = ""

    def results(self, cases: Sequence[Listed]) -> Iterator[CaseResult]:
        """Each result, in the order of ``cases``, once it and those before it are there."""
        pool = ThreadPoolExecutor(max(1, self._n_beside))
        waiting, ready = deque(cases), dict[str, CaseResult]()
        try:
            while waiting:
                case = waiting[0]
                company = self._company(waiting, ready)
                if case.name not in ready and len(company) > 1:
                    self._is_trouble.clear()
                    begun = {each.name: pool.submit(self._beside, each) for each in company}
                    for each in company:
                        found = begun[each.name].result()
                        if found is None or self._is_suspect(found):
                            ready |= self._settled(company, begun)
                            break
                        waiting.popleft()
                        yield found
                    continue
                if case.name not in ready:
                    ready[case.name] = self._alone(case)
                waiting.popleft()
                yield ready.pop(case.name)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            self._close()
            pool.shutdown(wait=True)

    def _company(self, waiting: Iterable[Listed], ready: Container[str]) -> list[Listed]:
        """Those that may run beside each other next."""
        if self._n_beside < 2 or self._silent_since:
            return []
        return list(takewhile(lambda case: not case.is_alone and case.name not in ready, waiting))

    def _is_suspect(self, result: CaseResult) -> bool:
        return result.is_bad and self._answers is not None

    def _beside(self, case: Listed) -> CaseResult | None:
        """In a thread: None where the case was not begun because another one went wrong."""
        if self._is_trouble.is_set():
            return None
        result = self._run(case)
        if self._is_suspect(result):
            self._is_trouble.set()
        return result

    def _alone(self, case: Listed) -> CaseResult:
        if self._silent_since:
            why = f"the GPU has not answered since the case {self._silent_since}"
            return CaseResult(case.name, case.fact, Outcome.SKIP, why)
        result = self._run(case)
        self._look_after(result)
        return result

    def _look_after(self, result: CaseResult) -> None:
        if result.may_harm and self._answers is not None:
            self._n_beside = 1
            if not self._answers():
                self._silent_since = result.name

    def _settled(
        self, company: Sequence[Listed], begun: Mapping[str, Future[CaseResult | None]]
    ) -> dict[str, CaseResult]:
        """Wait for all that was begun; run again alone what went wrong; give what each then counts as."""
        firsts = [(case, found) for case in company if (found := begun[case.name].result()) is not None]
        seconds: dict[str, CaseResult] = {}
        harmed = next((first for _, first in firsts if first.may_harm), None)
        if harmed is not None:
            self._look_after(harmed)
        for case, first in firsts:
            if first.is_bad and not self._silent_since:
                seconds[case.name] = self._alone(case)
        return {case.name: _weighed(first, seconds) for case, first in firsts}


def _weighed(first: CaseResult, seconds: Mapping[str, CaseResult]) -> CaseResult:
    """What a case counts as: ``first`` is how it ended in company, ``seconds`` how those that were bad did alone."""
    if not first.is_bad:
        return first
    second = seconds.get(first.name)
    if second is None:
        return replace(
            first, reason=f"{first.reason}; other cases ran beside it, and it could not be run again alone"
        )
    if second.outcome is not Outcome.PASS:
        return second
    authors = [name for name, other in seconds.items() if other.may_harm]
    if authors:
        return replace(second, reason=f"passed alone; beside {authors[0]}, which ended badly: {first.reason}")
    return replace(first, reason=f"{first.reason}; it failed beside other cases and passed alone")
