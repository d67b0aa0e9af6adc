"""Versions of the installed libraries; memory measurements hold only for the same versions."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

_LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes", "flash_attn")


def library_versions() -> list[str]:
    """Return the versions of the libraries that load and train models; "none" if one is missing."""
    return [version_of(name) or "none" for name in _LIBRARIES]


def version_of(name: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
