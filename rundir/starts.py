"""The valid combinations of starting, loading and training, and the zygote's part in each."""

from __future__ import annotations

from dataclasses import dataclass

from rundir.config import RunConfig
from rundir.errors import UserError

_ANY_METHOD = ("full", "lora", "qlora")
# A four-bit model is built on its GPU, by a library that initialises CUDA: never in the zygote.
_NOT_QUANTIZED = ("full", "lora")


@dataclass(frozen=True, slots=True)
class Start:
    """One row: launch.start, launch.load, the train.methods it is valid for, and who does what."""

    start: str
    load: str
    methods: tuple[str, ...]
    rank_does: str

    @property
    def zygote_builds(self) -> bool:
        """True if the model, too, is there before ranks are forked."""
        return self.start == "warm"

    @property
    def zygote_does(self) -> str:
        """The work that is done once, before the ranks are forked."""
        if self.start == "cold":
            return "is not started"
        return "imports, builds the model" if self.zygote_builds else "imports"


_MOVES = "moves the model to its device; on CPU the weights stay shared"
_READS = "maps the model's files, inside the gate"
_RECEIVES = "rank 0 maps the files; the others get all weights from it when the group is formed"
_MAKES = "makes the weights on its device, all ranks the same"

# Any other combination is invalid. Of equally near ones the first is proposed.
STARTS = (
    Start("warm", "mmap", _NOT_QUANTIZED, _MOVES),
    Start("imports", "mmap", _ANY_METHOD, _READS),
    Start("imports", "broadcast", _NOT_QUANTIZED, _RECEIVES),
    Start("imports", "random", _ANY_METHOD, _MAKES),
    Start("cold", "mmap", _ANY_METHOD, f"imports; {_READS}"),
    Start("cold", "broadcast", _NOT_QUANTIZED, f"imports; {_RECEIVES}"),
    Start("cold", "random", _ANY_METHOD, f"imports; {_MAKES}"),
)


def start_of(config: RunConfig) -> Start:
    """Return the row for this run; `launch.load=auto` is the first that fits the rest.

    Raises UserError, with the nearest valid combination, for an invalid one.
    """
    start, load, method = config.launch.start, config.launch.load, config.train.method

    def likeness(row: Start) -> tuple[bool, bool, bool]:
        return method in row.methods, load in (row.load, "auto"), start == row.start

    nearest = max(STARTS, key=likeness)  # the start is given up first, the method last
    if all(likeness(nearest)):
        return nearest
    settings = {"launch.start": (start, nearest.start), "launch.load": (load, nearest.load)}
    do = " ".join(f"--set {key}={new}" for key, (old, new) in settings.items() if old != new)
    raise UserError(
        f"launch.start={start} and launch.load={load} do not go together with method {method}",
        do=f"{do}   # the table of all that do: docs/how-the-start-works.md",
    )
