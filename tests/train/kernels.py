"""The kernels that torch calls while something runs."""

from __future__ import annotations

from typing import Any, NamedTuple

from ranks.torch_compat import TorchDispatchMode


class Call(NamedTuple):
    """One call: the operator, what it was given, and what it returned."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any

    @property
    def name(self) -> str:
        """The operator's name without its overload."""
        return str(self.op.__name__).partition(".")[0]

    @property
    def is_view(self) -> bool:
        """Whether it moves no values."""
        returns = self.op._schema.returns
        aliases = any(out.alias_info and not out.alias_info.is_write for out in returns)
        return aliases or self.name == "_unsafe_view"


class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every call inside the block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []

    def __torch_dispatch__(
        self, op: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = op(*args, **(kwargs or {}))
        self.calls.append(Call(op, args, kwargs or {}, result))
        return result
