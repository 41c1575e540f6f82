"""May this user open the GPU: device nodes, groups, containers."""

from __future__ import annotations

import stat
from dataclasses import dataclass

from gfxgraph.hardware.machine import Machine

KFD = "/dev/kfd"


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device file and what this user may do with it."""

    path: str
    exists: bool
    may_open: bool
    group: str = ""


def device_nodes(machine: Machine) -> list[DeviceNode]:
    """Return /dev/kfd and every render node, present or not."""
    renders = [f"/dev/dri/{name}" for name in machine.names("/dev/dri") if name.startswith("renderD")]
    return [_node(machine, path) for path in [KFD, *renders]]


def _node(machine: Machine, path: str) -> DeviceNode:
    found = machine.stat(path)
    if found is None:
        return DeviceNode(path, False, False)
    # Rights are computed, not tried: opening /dev/kfd creates a GPU context.
    need = stat.S_IROTH | stat.S_IWOTH
    if machine.uid == 0:
        allowed = True
    elif found.st_uid == machine.uid:
        allowed = (found.st_mode >> 6) & need == need
    elif found.st_gid in machine.groups:
        allowed = (found.st_mode >> 3) & need == need
    else:
        allowed = found.st_mode & need == need
    # Logind and udev grant rights by ACL too; its presence shows as the group mask only, so a
    # refusal computed here is "probably", and doctor words it so.
    return DeviceNode(path, True, allowed, group_name(machine, found.st_gid))


def group_name(machine: Machine, gid: int) -> str:
    """Return the group's name, or its number where it has none here (usual in a container)."""
    for line in machine.text("/etc/group").splitlines():
        parts = line.split(":")
        if len(parts) >= 3 and parts[2] == str(gid):
            return parts[0]
    return str(gid)


def container(machine: Machine) -> str:
    """Return ``docker``, ``podman``, ``kubernetes``, ``lxc``, ``wsl``, or '' outside a container."""
    if machine.exists("/proc/sys/fs/binfmt_misc/WSLInterop") or machine.exists("/dev/dxg"):
        return "wsl"
    if machine.exists("/var/run/secrets/kubernetes.io"):
        return "kubernetes"
    if machine.exists("/run/.containerenv"):
        return "podman"
    if machine.exists("/.dockerenv"):
        return "docker"
    cgroup = machine.text("/proc/1/cgroup")
    names = {"kubepods": "kubernetes", "docker": "docker", "libpod": "podman", "lxc": "lxc"}
    return next((name for word, name in names.items() if word in cgroup), "")


def has_amd_gpu(machine: Machine) -> bool:
    """True where the PCI bus shows an AMD display or compute device, driver or not."""
    folders = [f"/sys/bus/pci/devices/{device}" for device in machine.names("/sys/bus/pci/devices")]
    amd = (folder for folder in folders if machine.text(f"{folder}/vendor") == "0x1002")
    return any(machine.text(f"{folder}/class")[:4] in ("0x03", "0x12") for folder in amd)
