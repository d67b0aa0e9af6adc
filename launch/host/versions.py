"""Versions of what is installed: what takes memory is known only for these."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

_LIBRARIES = ("torch", "transformers", "peft", "bitsandbytes")


def library_versions() -> list[str]:
    """The versions of the libraries that load and train a model; "none" for one that is missing."""
    return [_version(name) for name in _LIBRARIES]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
