"""config: the only reader of the process environment.

Enters: a mapping of environment variables.
Stays out: torch, drivers, files, decisions about hardware.

A bad value never raises here, because reading settings must work in a process that only wants
an error explained. It is collected in ``Config.problems``; ``errors.check_settings`` turns the
first of them into a ``ConfigError`` where one is wanted.
"""

from __future__ import annotations

import errno
import os
import string
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from gfxgraph.types import GuardTier, OnUnsafe, ReplayMode


class Activation(StrEnum):
    """What ``GFXGRAPH`` asks for."""

    OFF = "off"
    ON = "on"
    DEBUG = "debug"
    VALIDATE = "validate"
    REQUIRE = "require"
    """As ON; a process in which it cannot be on ends."""


class WaveMode(StrEnum):
    """What ``GFXGRAPH_WAVE`` asks for."""

    OFF = "off"
    DETECT = "detect"
    AUTO = "auto"


class LogLevel(StrEnum):
    """What ``GFXGRAPH_LOG`` asks for."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


class CompileWays(StrEnum):
    """What ``GFXGRAPH_COMPILE`` asks for."""

    AUTO = "auto"
    """Regions, but nothing on an NVIDIA GPU, where Inductor's own graphs are sound."""
    OFF = "off"
    REGIONS = "regions"


@dataclass(frozen=True, slots=True)
class Problem:
    """A variable whose value was refused; the default is in force instead."""

    variable: str
    value: str
    allowed: str


# -- what a value may be; each parser takes the text and the other variables, and raises ValueError --------

Parser = Callable[[str, Mapping[str, str]], Any]

_TRUE = frozenset({"1", "on", "true", "yes"})
_FALSE = frozenset({"0", "off", "false", "no"})
_TIERS = {
    GuardTier.OFF: (*_FALSE, "none"),
    GuardTier.SAFE: ("1", "tier1", "safe", "capture"),
    GuardTier.LOCALIZE: ("2", "tier2", "localize"),
    GuardTier.DEEP: ("3", "tier3", "deep", "all"),
}
_GUARD = {word: tier for tier, words in _TIERS.items() for word in words}
_LANG = {"en": "en", "english": "en", "zh": "zh", "cn": "zh", "chinese": "zh"}


def _choice(kind: type[StrEnum], on: object = None, off: object = None, **others: object) -> Parser:
    """The words of an enumeration, others by name, and 1 and 0 for two of its members."""
    words: dict[str, object] = {member.value: member for member in kind} | others
    words |= {word: member for some, member in ((_TRUE, on), (_FALSE, off)) if member is not None for word in some}
    return _one_of(words)


def _one_of(words: Mapping[str, object]) -> Parser:
    def parse(value: str, environ: Mapping[str, str]) -> Any:
        if value.lower() not in words:
            raise ValueError(value)
        return words[value.lower()]

    return parse


def _text(value: str, environ: Mapping[str, str]) -> str:
    return value


def _whole(least: int) -> Parser:
    def parse(value: str, environ: Mapping[str, str]) -> int:
        number = int(value)
        if number < least:
            raise ValueError(value)
        return number

    return parse


def _fraction(value: str, environ: Mapping[str, str]) -> float:
    number = float(value)
    if not 0.0 < number <= 1.0:  # also refuses nan
        raise ValueError(value)
    return number


def _path(value: str, environ: Mapping[str, str]) -> str:
    """A path; its ``~`` stands for a home where the shell left it."""
    if value[:1] != "~":
        return value
    home = environ.get("HOME", "").strip() if value[1:2] in ("", "/") else ""
    found = home + value[1:] if home else os.path.expanduser(value)
    if found[:1] == "~":  # nobody knows that user
        raise ValueError(value)
    return found


def _arch(value: str, environ: Mapping[str, str]) -> str:
    """Accept ``gfx1030``, ``gfx90a:sramecc+:xnack-`` and ``10.3.0``, the spelling of the HSA override."""
    word = value.lower()
    parts = word.split(".")
    if len(parts) == 3 and all(part.isdigit() for part in parts):
        return f"gfx{int(parts[0])}{int(parts[1]):x}{int(parts[2]):x}"
    name = word.split(":")[0]
    if not name.startswith("gfx") or not 6 <= len(name) <= 8 or not set(name[3:]) <= set("0123456789abcdef"):
        raise ValueError(value)
    return name


def _language(value: str, environ: Mapping[str, str]) -> str:
    word = _language_word(value)
    if word not in _LANG:
        raise ValueError(value)
    return _LANG[word]


# With the words that MIGraphX itself takes for its MIGRAPHX_ENABLE_ variables.
_flag = _one_of(
    dict.fromkeys((*_TRUE, "enable", "enabled"), True) | dict.fromkeys((*_FALSE, "disable", "disabled"), False)
)


def _read(variable: str, allowed: str, parse: Parser, default: object) -> Any:
    """A field of `Config`: the variable that sets it, and the values that it takes, in words."""
    return field(default=default, metadata={"variable": variable, "allowed": allowed, "parse": parse})


@dataclass(frozen=True, slots=True)
class Config:
    """Every setting, read once."""

    activation: Activation = _read(
        "GFXGRAPH", "off | on (1) | debug | validate | require",
        _choice(Activation, Activation.ON, Activation.OFF, normal=Activation.ON), Activation.OFF,
    )  # fmt: skip
    allow_cuda: bool = _read("GFXGRAPH_ALLOW_CUDA", "0 | 1", _flag, False)
    on_unsafe: OnUnsafe = _read("GFXGRAPH_ON_UNSAFE", " | ".join(OnUnsafe), _choice(OnUnsafe), OnUnsafe.SPLIT)
    simulate: str = _read("GFXGRAPH_SIMULATE", "name of a simulator profile", _text, "")
    validate_replays: int | None = _read("GFXGRAPH_VALIDATE_REPLAYS", "a whole number, 0 or more", _whole(0), None)
    validate_first: bool = False
    """``enable(validate=True)``: the first replays of each graph, on any platform."""
    guard: GuardTier = _read(
        "GFXGRAPH_GUARD", "0 | 1 (safe) | 2 (localize) | 3 (deep)", _one_of(_GUARD), GuardTier.OFF
    )
    flight: str = _read("GFXGRAPH_FLIGHT", "a folder in the state directory; set by gfxgraph run --guard", _path, "")
    lang: str = _read("GFXGRAPH_LANG", "en | zh", _language, "en")
    arch: str = _read("GFXGRAPH_ARCH", "an architecture name, e.g. gfx1030", _arch, "")
    environment: str = _read("GFXGRAPH_ENVIRONMENT", "path of a recorded environment (JSON)", _path, "")
    replay_mode: ReplayMode = _read(
        "GFXGRAPH_REPLAY_MODE", "standard | adaptive | hot", _choice(ReplayMode), ReplayMode.STANDARD
    )
    vram_cap: float = _read("GFXGRAPH_VRAM_CAP", "a fraction above 0, at most 1", _fraction, 0.80)
    lib: str = _read("GFXGRAPH_LIB", "path of the native library", _path, "")
    log_level: LogLevel = _read(
        "GFXGRAPH_LOG", "debug | info | warn | error", _choice(LogLevel, warning=LogLevel.WARN), LogLevel.WARN
    )
    trusted_replay_threshold: int | None = _read(
        "GFXGRAPH_TRUSTED_REPLAY_THRESHOLD", "a whole number, 0 or more", _whole(0), None
    )
    """Replays that take the slow way before a graphed callable takes the short one; None: 1."""
    trusted_replay_sample_interval: int | None = _read(
        "GFXGRAPH_TRUSTED_REPLAY_SAMPLE_INTERVAL", "a whole number, 1 or more", _whole(1), None
    )
    """Afterwards one replay in so many takes the slow way again; None: none."""
    diag: bool = _read("GFXGRAPH_DIAG", "0 | 1", _flag, True)
    wave: WaveMode = _read(
        "GFXGRAPH_WAVE", "off | detect | auto",
        _choice(WaveMode, WaveMode.DETECT, WaveMode.OFF, none=WaveMode.OFF, warn=WaveMode.DETECT,
                convert=WaveMode.AUTO, **{"2": WaveMode.AUTO}), WaveMode.DETECT,
    )  # fmt: skip
    no_wave: bool = _read("GFXGRAPH_NO_WAVE", "0 | 1", _flag, False)
    sglang_disabled: bool = _read("SGLANG_DISABLE_GFXGRAPH", "0 | 1", _flag, False)
    migraphx_graphs: bool = _read("MIGRAPHX_ENABLE_HIPGRAPH", "0 | 1", _flag, False)
    report: str = _read("GFXGRAPH_REPORT", "a folder for what gfxgraph report shows", _path, "")
    """Folder where each process leaves what `gfxgraph report` shows; empty: none."""
    profile: bool = _read("GFXGRAPH_PROFILE", "0 | 1", _flag, False)
    """Whether that has the GPU time inside graphs, by module, line and kernel."""
    compile: CompileWays = _read(
        "GFXGRAPH_COMPILE", "auto | 0 | regions (1)",
        _choice(CompileWays, CompileWays.REGIONS, CompileWays.OFF), CompileWays.AUTO,
    )  # fmt: skip
    """After ``enable()``: which graphs torch.compile gives that is asked for some."""
    transformers: bool = _read("GFXGRAPH_TRANSFORMERS", "0 | 1", _flag, False)
    """After ``enable()``: every model of transformers is accelerated."""
    problems: tuple[Problem, ...] = ()

    @property
    def is_on(self) -> bool:
        """True when the environment asks for the bridge."""
        return self.activation is not Activation.OFF and not self.sglang_disabled


_FIELDS = tuple(each for each in fields(Config) if each.metadata)
VARIABLES: Mapping[str, str] = {each.metadata["variable"]: each.metadata["allowed"] for each in _FIELDS} | {
    "GFXGRAPH_REPLAY_HOT_MODE": "0 | 1",
    "HGB_LOG_LEVEL": "debug | info | warn | error",
    "HGB_DEBUG": "0 | 1; same as HGB_LOG_LEVEL=debug",
    "SGLANG_RDNA2_KERNELS": "0 | 1",
}
"""Every variable that gfxgraph reads, with the values it takes; shown in messages and by doctor."""

GPU_PREFIXES = (
    "AMD_", "CUDA_", "DEBUG_CLR_", "DEBUG_HIP_", "GFXGRAPH", "GGML_", "GPU_", "HCC_", "HGB_", "HIP_",
    "HSA_", "MIOPEN_", "NCCL_", "OCL_", "PYTORCH_", "RCCL_", "ROCBLAS_", "ROCM_", "ROCR_", "ROC_",
    "SGLANG_", "TORCH", "TRITON_", "USE_ROCM", "VLLM_", "HIPBLASLT_", "AITER_", "FLASH_ATTENTION_",
)  # fmt: skip


_OTHERS = frozenset({
    "GFXGRAPH_REQUIRED", "GFXGRAPH_STATS",
    "GFXGRAPH_PRELOAD_REPORT", "GFXGRAPH_PRELOAD_NODE_LIMIT", "GFXGRAPH_PRELOAD_UPDATE_BUDGET",
    "GFXGRAPH_PRELOAD_REFUSE_LAUNCH", "GFXGRAPH_PRELOAD_CAPTURE_MODE", "GFXGRAPH_PRELOAD_FALLBACK",
    "GFXGRAPH_COMPAT_REPORT",
})  # fmt: skip
"""Names that are not settings of this process: gfxgraph run sets them, or the native libraries read them."""

REPORTED = frozenset({
    "AITER_LOG_LEVEL", "AMD_LOG_LEVEL", "AMD_SERIALIZE_COPY", "AMD_SERIALIZE_KERNEL", "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "CUDA_VISIBLE_DEVICES", "DEBUG_CLR_GRAPH_PACKET_CAPTURE",
    "DEBUG_HIP_GRAPH_DYNAMIC_SCHEDULING", "DEBUG_HIP_GRAPH_SEGMENT_SCHEDULING", "FLASH_ATTENTION_TRITON_AMD_ENABLE",
    "GPU_DEVICE_ORDINAL", "GPU_MAX_HW_QUEUES", "HIP_FORCE_DEV_KERNARG", "HIP_LAUNCH_BLOCKING", "HIP_VISIBLE_DEVICES",
    "HSA_ENABLE_DEBUG", "HSA_ENABLE_SDMA", "HSA_NO_SCRATCH_RECLAIM", "HSA_OVERRIDE_GFX_VERSION", "HSA_XNACK",
    "MIOPEN_FIND_MODE", "NCCL_ASYNC_ERROR_HANDLING", "NCCL_DEBUG", "NCCL_GRAPH_MIXING_SUPPORT", "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_ROCM_ARCH",
    "PYTORCH_TUNABLEOP_ENABLED", "ROCR_VISIBLE_DEVICES", "TORCHINDUCTOR_MAX_AUTOTUNE",
    "TORCH_BLAS_PREFER_HIPBLASLT", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TRITON_HIP_USE_BLOCK_PINGPONG",
    *(VARIABLES.keys() - {"GFXGRAPH_FLIGHT", "GFXGRAPH_LIB"}),
})  # fmt: skip
"""What a report for others may show: names whose values are switches and numbers, one by one."""

_OF_SWITCHES = frozenset(string.ascii_letters + string.digits + "_.,:;=+|*-[]<> ")


def reported(variables: Mapping[str, str]) -> dict[str, str]:
    """Those of ``variables`` that a report for others may show; not values of another form: a path, a URL."""
    return {
        name: value if set(value) <= _OF_SWITCHES and len(value) <= 200 else "<not shown>"
        for name, value in variables.items()
        if name in REPORTED
    }


def set_default(name: str, value: str) -> bool:
    """Set a variable of this process where it is not set; whether it was not."""
    if name in os.environ:
        return False
    os.environ[name] = value
    return True


LOOKS_UP_VARIABLES = getattr(getattr(os.environ, "encodekey", None), "__code__", None)
"""The code that runs wherever a variable of the environment is looked up."""


def environment() -> dict[str, object]:
    """What holds this process's environment."""
    return vars(os.environ)["_data"]  # type: ignore[no-any-return]


def gpu_variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that change how a GPU program behaves, by name, sorted."""
    source = os.environ if environ is None else environ
    return {name: source[name] for name in sorted(source) if name.startswith(GPU_PREFIXES)}


def variables(names: Iterable[str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return those of ``names`` that are set and not empty (``LD_LIBRARY_PATH``, ``HOME``...)."""
    source = os.environ if environ is None else environ
    return {name: source[name] for name in names if source.get(name)}


def misspelt(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that are set and never read, each with the setting that its name resembles.

    Names that resemble none are left alone: they may be another version's, or the user's own.
    """
    source = os.environ if environ is None else environ
    unknown = [
        name
        for name in source
        if name.startswith(("GFXGRAPH_", "HGB_")) and name not in VARIABLES and name not in _OTHERS
    ]
    if not unknown:
        return {}
    # lazily: such a name is rare
    from difflib import get_close_matches

    near = {name: get_close_matches(name, VARIABLES, n=1, cutoff=0.85) for name in sorted(unknown)}
    return {name: found[0] for name, found in near.items() if found}


def guard_tier(word: GuardTier | int | str) -> GuardTier:
    """Return the tier that ``word`` names, as ``GFXGRAPH_GUARD`` would be read.

    Raises:
        ValueError: it names none.
    """
    word = str(int(word)) if isinstance(word, int) else word
    found = _GUARD.get(word.strip().lower()) if isinstance(word, str) else None
    if found is None:
        raise ValueError(word)
    return found


def home_folder(environ: Mapping[str, str] | None = None) -> Path | None:
    """This user's home; None where it is not known: a relative one is whatever the current folder holds."""
    source = os.environ if environ is None else environ
    try:
        home = Path(source["HOME"]) if source.get("HOME") else Path.home()
    except RuntimeError:
        return None
    return home if home.is_absolute() else None


def _folder_of_ours(environ: Mapping[str, str] | None, variable: str, below_home: str) -> Path | None:
    source = os.environ if environ is None else environ
    stated = source.get(variable, "")
    # The specification: a relative path is to be ignored.
    if stated and Path(stated).is_absolute():
        return Path(stated) / "gfxgraph"
    home = home_folder(source)
    return home / below_home / "gfxgraph" if home is not None else None


def cache_folder(environ: Mapping[str, str] | None = None) -> Path | None:
    """The folder for what can be made again, ``$XDG_CACHE_HOME/gfxgraph`` or below the home; None: none is known."""
    return _folder_of_ours(environ, "XDG_CACHE_HOME", ".cache")


def state_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder for what outlives a process: ``$XDG_STATE_HOME/gfxgraph``, or below the home directory.

    It need not exist. Nothing that was not asked for by name is written anywhere else.

    Raises:
        FileNotFoundError: this user's home is not known.
    """
    found = _folder_of_ours(environ, "XDG_STATE_HOME", ".local/state")
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "no home folder is known; set XDG_STATE_HOME", "~")
    return found


def language_of(environ: Mapping[str, str] | None = None) -> str:
    """Return ``zh`` or ``en``: GFXGRAPH_LANG, else the locale, else English."""
    source = os.environ if environ is None else environ
    asked = _LANG.get(_language_word(source.get("GFXGRAPH_LANG", "")))
    if asked:
        return asked
    # The order in which the C library itself resolves the language of messages.
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        value = source.get(name, "")
        if value:
            return "zh" if _language_word(value) == "zh" else "en"
    return "en"


def load(environ: Mapping[str, str] | None = None) -> Config:
    """Read every setting. Bad values are reported in ``problems``, and the default is used.

    Args:
        environ: variables to read; the process's own where None.
    """
    source = os.environ if environ is None else environ
    problems: list[Problem] = []

    def read(variable: str, parse: Parser, default: object) -> Any:
        value = source.get(variable, "").strip()
        try:
            return parse(value, source) if value else default
        except ValueError:
            problems.append(Problem(variable, value, VARIABLES[variable]))
            return default

    defaults = {each.name: each.default for each in _FIELDS}
    defaults["lang"] = language_of(source)
    if read("GFXGRAPH_REPLAY_HOT_MODE", _flag, False):
        defaults["replay_mode"] = ReplayMode.HOT
    if read("SGLANG_RDNA2_KERNELS", _flag, False):  # asks for the bridge, too; GFXGRAPH=0 still wins
        defaults["activation"] = Activation.ON
    if read("HGB_DEBUG", _flag, False) or source.get("GFXGRAPH", "").strip().lower() == Activation.DEBUG:
        defaults["log_level"] = LogLevel.DEBUG
    levels = next(each.metadata["parse"] for each in _FIELDS if each.name == "log_level")
    defaults["log_level"] = read("HGB_LOG_LEVEL", levels, defaults["log_level"])  # its old name
    found = {
        each.name: read(each.metadata["variable"], each.metadata["parse"], defaults[each.name]) for each in _FIELDS
    }
    return Config(**found, problems=tuple(problems))


def _language_word(value: str) -> str:
    """``zh_CN.UTF-8`` and ``zh-Hans`` are both ``zh``."""
    return value.strip().lower().split(".")[0].replace("-", "_").split("_")[0]
