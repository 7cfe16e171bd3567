"""The kind of this node's processor: libraries choose their kernels, and so the bits of results, by it."""

from __future__ import annotations

_MODEL = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")
_FLAGS = ("flags", "Features")
_VECTORS = ("sse", "ssse", "avx", "fma", "f16c", "amx", "asimd", "sve")


def describe_cpu(cpuinfo: str) -> str:
    """Return model and vector instructions of the first processor in /proc/cpuinfo, as words."""
    parts = (line.partition(":") for line in cpuinfo.split("\n\n")[0].splitlines())
    lines = {name.strip(): value.strip() for name, _, value in parts}
    flags = {word for name in _FLAGS for word in lines.get(name, "").split() if word.startswith(_VECTORS)}
    return " ".join([lines[name] for name in _MODEL if name in lines] + sorted(flags))


def read_cpu() -> str:
    """Return the kind of this machine's processor, or "" if the kernel does not say."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return describe_cpu(file.read())
    except OSError:
        return ""
