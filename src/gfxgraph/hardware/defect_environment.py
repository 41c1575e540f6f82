"""What decisions about defects depend on: versions, architectures, variables. Frozen, and plain JSON.

An environment comes from this machine (``detect``), from a file recorded on another one
(GFXGRAPH_ENVIRONMENT), or is written by hand in a test; GFXGRAPH_ARCH replaces the architectures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gfxgraph import config, files
from gfxgraph.errors import ConfigError
from gfxgraph.hardware import versions
from gfxgraph.hardware.chosen_device import override_for
from gfxgraph.hardware.machine import Machine
from gfxgraph.hardware.software import Torch, find_rocm, find_torch, runtime_version
from gfxgraph.hardware.topology import gpus
from gfxgraph.hardware.versions import Version


@dataclass(frozen=True, slots=True)
class Environment:
    """A machine as far as graph defects depend on it.

    ``platform`` is "hip", "cuda" or "none". Versions may be known in part; () is unknown.
    ``archs`` are what programs see, after overrides; ``source`` says where all this comes from.
    """

    platform: str = "none"
    hip: Version = ()
    rocm: Version = ()
    torch: Version = ()
    archs: tuple[str, ...] = ()
    n_gpus: int = 0
    environ: Mapping[str, str] = field(default_factory=dict)
    source: str = "given"

    def as_dict(self) -> dict[str, object]:
        """Plain data for others, which ``from_dict`` takes back: of the variables those that a report may show."""
        return {
            "platform": self.platform,
            "hip": versions.show(self.hip) if self.hip else "",
            "rocm": versions.show(self.rocm) if self.rocm else "",
            "torch": versions.show(self.torch) if self.torch else "",
            "archs": list(self.archs),
            "n_gpus": self.n_gpus,
            "environ": config.reported(self.environ),
        }


def detect(machine: Machine | None = None, torch: Torch | None = None) -> Environment:
    """Describe this machine, or what GFXGRAPH_ENVIRONMENT and GFXGRAPH_ARCH say in its place.

    Raises:
        ConfigError: `environment_unreadable`.
    """
    settings = config.load()
    if settings.environment and machine is None:
        found = load(Path(settings.environment))
    else:
        found = _detect(machine or Machine(), torch or find_torch())
    if settings.arch:
        found = replace(found, archs=(settings.arch,), source=f"{found.source}, GFXGRAPH_ARCH")
    return found


def _detect(machine: Machine, torch: Torch) -> Environment:
    installed = find_rocm(machine)
    hip = versions.parse(torch.hip)
    if torch.kind != "cuda" and not hip:
        library_path = config.variables(["LD_LIBRARY_PATH"]).get("LD_LIBRARY_PATH", "")
        hip = versions.parse(runtime_version(machine, library_path))
    # A ROCm wheel of torch brings its own runtime, so its word goes before /opt/rocm's.
    if torch.rocm:
        rocm = versions.parse(torch.rocm)
    elif torch.hip or not (installed and installed[0].version):
        rocm = versions.rocm_of_hip(hip)
    else:
        rocm = versions.parse(installed[0].version)
    cards = gpus(machine)
    if torch.kind == "rocm" or (torch.kind != "cuda" and (cards or rocm)):
        platform = "hip"
    else:
        platform = "cuda" if torch.kind == "cuda" else "none"
    archs = (override_for(gpu, machine) or gpu.arch for gpu in cards)
    return Environment(
        platform=platform,
        hip=hip,
        rocm=rocm,
        torch=versions.parse(torch.version),
        archs=tuple(dict.fromkeys(archs)),
        n_gpus=len(cards),
        environ=machine.environ,
        source="detected",
    )


def load(path: Path) -> Environment:
    """Read a recorded environment: a file of ``as_dict``, or of ``gfxgraph doctor --json``.

    Raises:
        ConfigError: `environment_unreadable`.
    """
    try:
        data = files.parse_json(files.read_named(path))
    except (OSError, ValueError) as error:
        raise ConfigError("environment_unreadable", path=path, problem=error) from error
    return from_dict(data, str(path))


def from_dict(data: object, source: str = "given") -> Environment:
    """Build an environment from plain data.

    Raises:
        ConfigError: `environment_unreadable`, with what is wrong with it.
    """
    if isinstance(data, dict) and isinstance(data.get("environment"), dict):
        data = data["environment"]  # the whole of doctor's report was given
    if not isinstance(data, dict):
        raise ConfigError("environment_unreadable", path=source, problem="not a JSON object")
    platform = data.get("platform", "hip")
    if platform not in ("hip", "cuda", "none"):
        raise ConfigError("environment_unreadable", path=source, problem=f"platform is {platform!r}")
    archs = data.get("archs", [])
    environ = data.get("environ", {})
    if not isinstance(archs, list) or not isinstance(environ, dict):
        problem = "archs must be a list and environ an object"
        raise ConfigError("environment_unreadable", path=source, problem=problem)
    n_gpus = data.get("n_gpus", len(archs))
    if type(n_gpus) is not int or n_gpus < 0:
        raise ConfigError("environment_unreadable", path=source, problem=f"n_gpus is {str(n_gpus)[:40]!r}")
    hip = versions.parse(str(data.get("hip", "")))
    return Environment(
        platform=platform,
        hip=hip,
        rocm=versions.parse(str(data.get("rocm", ""))) or versions.rocm_of_hip(hip),
        torch=versions.parse(str(data.get("torch", ""))),
        archs=tuple(str(arch).split(":")[0] for arch in archs),
        n_gpus=n_gpus,
        environ={str(name): str(value) for name, value in environ.items()},
        source=source,
    )
