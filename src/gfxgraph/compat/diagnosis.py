"""Errors explained: a Diagnosis, or None where nothing is known."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from gfxgraph import config
from gfxgraph.diagnostics.explanation import Explanation
from gfxgraph.hardware import advice

__all__ = [
    "Diagnosis", "diag_enabled", "diag_lang", "diagnose", "environment_report", "explain", "install_diagnostics",
    "lang", "report",
]  # fmt: skip

CODES = (
    "no_kernel_image", "out_of_memory", "illegal_address", "bf16_unsupported", "wrong_arch", "wave64_ignored",
    "aiter_on_rdna", "invalid_configuration",
)  # fmt: skip
"""The eight conditions that 1.1.0 knew, by its names; today's catalogue has these and the others."""
_SEVERITY = {"wrong_arch": "warning", "aiter_on_rdna": "warning", "wave64_ignored": "info"}
_LABELS = {
    "en": ("gfxGRAPH diagnosis", "Cause", "Here", "Fix", "silence: GFXGRAPH_DIAG=0"),
    "zh": ("gfxGRAPH 诊断", "原因", "此处", "处理", "静默：GFXGRAPH_DIAG=0"),
}
_TABLE = [(code,) for code in CODES]  # what 1.1.0's own tests walk through: its conditions, their names first
_log = logging.getLogger("gfxgraph")


@dataclass(frozen=True)
class Diagnosis:
    """One error, explained.

    Attributes:
        code: 1.1.0's name of the condition where it had one, else the catalogue's.
        severity: "error", "warning" or "info".
        summary: what it is, in a line.
        cause: why it happens.
        rocm_context: what it means on this GPU.
        fix: what to do.
    """

    code: str
    severity: str
    summary: str
    cause: str
    rocm_context: str
    fix: str
    found: Explanation | None = field(default=None, repr=False, compare=False)
    """What it was made of, in both languages."""

    def localized(self, lang_: str) -> dict[str, str]:
        """The text in one language.

        Args:
            lang_: "en" or "zh".

        Returns:
            ``summary``, ``cause``, ``rocm_context`` and ``fix``.
        """
        if self.found is not None:
            return _words(self.found, lang_)
        return {name: str(getattr(self, name)) for name in ("summary", "cause", "rocm_context", "fix")}

    def format(self, lang_: str | None = None) -> str:
        """The text for people.

        Args:
            lang_: "en" or "zh"; the language that is set where None.
        """
        language = lang_ or diag_lang()
        words = self.localized(language)
        diagnosis, cause, here, fix, silence = _LABELS[language]
        rows = [(cause, words["cause"]), (here, words["rocm_context"]), (fix, words["fix"])]
        lines = [f"{diagnosis} [{self.severity.upper()}: {self.code}]", f"  {words['summary']}"]
        for label, text in rows:
            if text:
                lines.append(f"  {label}: " + text.replace("\n", "\n    "))
        return "\n".join([*lines, f"  ({silence})"])

    def __str__(self) -> str:
        return self.format()


def _words(found: Explanation, language: str) -> dict[str, str]:
    parts: Any = found.as_dict(language)["explanation"]
    return {
        "summary": f"{parts['title']}: {parts['what']}",
        "cause": parts["why"],
        "rocm_context": "\n".join(parts["notes"]),
        "fix": "\n".join(parts["do"]),
    }


def words_of(code: str, language: str) -> dict[str, str]:
    """What is said of one of ``CODES``."""
    return _words(advice.explain(code), language)


def explain(error: object) -> Diagnosis | None:
    """Explain an error.

    Args:
        error: an exception, a text or a status.

    Returns:
        The diagnosis; None where nothing is known.
    """
    if error is None:
        return None
    found = advice.explain(error)
    if found.code is None:
        return None
    code = next((name for name in CODES if found.code == name), str(found.code))
    severity = _SEVERITY.get(code, "error")
    return Diagnosis(code=code, severity=severity, **_words(found, "en"), found=found)


def diag_lang() -> str:
    """The language of messages: "en" or "zh"."""
    return config.language_of()


lang = diag_lang


def diag_enabled() -> bool:
    """Whether explanations are shown: GFXGRAPH_DIAG."""
    return config.load().diag


def report(error: object, *, context: str | None = None, logger: logging.Logger | None = None) -> Diagnosis | None:
    """Explain an error and log it, at its severity; GFXGRAPH_DIAG=0 logs nothing.

    Args:
        error: an exception, a text or a status.
        context: what was being done; the message begins with it.
        logger: where to log; "gfxgraph" where None.

    Returns:
        The diagnosis; None where nothing is known.
    """
    found = explain(error)
    if found is not None and diag_enabled():
        level = {"error": logging.ERROR, "warning": logging.WARNING}.get(found.severity, logging.INFO)
        (logger or _log).log(level, "%s%s", f"[{context}] " if context else "", found.format())
    return found


class diagnose:  # noqa: N801  (its name in 1.1.0)
    """Log the explanation of what goes wrong in a ``with`` block; the exception goes on.

    Args:
        context: what the block does; the message names it.
    """

    def __init__(self, context: str | None = None) -> None:
        self.context = context

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            report(error, context=self.context)


def install_diagnostics() -> bool:
    """Explain uncaught errors from now on; returns True where that was not so before."""
    before = sys.excepthook
    advice.install_diagnostics()
    return sys.excepthook is not before


def environment_report() -> str:
    """What is here, for a bug report: settings, PyTorch, GPU, accelerators, engines."""
    # lazily: an error is explained without them
    from gfxgraph.compat import devices

    settings = ("HSA_OVERRIDE_GFX_VERSION", "PYTORCH_ROCM_ARCH", "GFXGRAPH", "GFXGRAPH_GUARD", "GFXGRAPH_DIAG",
                "GFXGRAPH_WAVE")  # fmt: skip
    given = config.variables(settings)
    rows = [(name, given.get(name, "(not set)")) for name in settings]
    rows += [
        (kind, ", ".join(name for name, is_there in found.items() if is_there) or "(none)")
        for kind, found in (
            ("accelerators", devices.detect_accelerators()),
            ("engines", devices.detect_engines()),
        )
    ]
    lines = ["gfxGRAPH environment report:", *(f"  {name:<24} {value}" for name, value in rows)]
    lines += [f"  {line}" for line in advice.environment_report().splitlines()]
    return "\n".join(lines)
