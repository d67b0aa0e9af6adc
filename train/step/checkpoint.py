"""Checkpoints, complete or absent: folders step_XXXXXXXX with the trained weights and all state.

The folder is written under another name, synced to disk and renamed; its marker, written last, says
that it is complete. A folder without a marker is never loaded.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from ranks.group import Ranks
from rundir.atomic import new_folder, require_space
from rundir.checkpoints import (
    MARKER,
    best_checkpoint,
    checkpoint_name,
    complete_checkpoints,
    incomplete_checkpoints,
    remove_checkpoint,
)
from rundir.errors import UserError
from train.update.bf16 import fitted
from train.update.optimizer import with_own_states


def save(
    folder: Path,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ranks: Ranks,
    *,
    keep: int,
    notes: dict[str, Any] | None = None,
) -> Path:
    """Save after `step` steps; called by all ranks. The last `keep` and the best one are kept.

    Only trained weights are saved: the adapters of a LoRA run. Optimizer states are written by the
    rank that has them. `notes`, for JSON, are kept for `notes_of`. Raises OSError on a rank that
    cannot write (a full disk); the existing checkpoints stay.
    """
    random_states = ranks.gather(_random_state(ranks.device))
    path = folder / checkpoint_name(step)
    if ranks.is_first and path in incomplete_checkpoints(folder):
        remove_checkpoint(path)  # it would be mistaken for this one
    is_writer, states = _is_writer(optimizer, ranks), _own_states(model, optimizer)
    _require_space(folder, step, model, optimizer, ranks)
    with new_folder(path) if ranks.is_first else nullcontext() as made:
        temporary = Path(ranks.share(str(made)))
        if is_writer:
            torch.save(states, temporary / f"optimizer-{ranks.rank:05d}.pt")
        if ranks.is_first:
            save_file(_trained(model), temporary / "model.safetensors")
            torch.save(random_states, temporary / "random.pt")
            about = {"step": step, "world_size": ranks.world_size, "notes": notes or {}}
            (temporary / "state.json").write_text(json.dumps(about), encoding="utf-8")
        ranks.wait()
        if ranks.is_first:
            (temporary / MARKER).touch()
    if ranks.is_first:
        for old in set(complete_checkpoints(folder)[:-keep]) - {best_checkpoint(folder)}:
            remove_checkpoint(old)
    ranks.wait()
    return path


def lacking(
    folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks
) -> str:
    """Return why there is no room for a checkpoint, or ""; called by all ranks."""
    why = ""
    try:
        _require_space(folder, step, model, optimizer, ranks)
    except OSError as error:
        why = error.strerror or str(error)
    return str(ranks.share(why))


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks) -> int:
    """Load the checkpoint in `path` on every rank; return the number of steps before it.

    Raises UserError if it does not belong to this model.
    """
    load_weights(path, model)
    _load_states(path, model, optimizer)
    random_states = torch.load(path / "random.pt", map_location="cpu", weights_only=True)
    if len(random_states) == ranks.world_size:  # else no state belongs to this rank
        _set_random_state(random_states[ranks.rank], ranks.device)
    return int(json.loads((path / "state.json").read_text(encoding="utf-8"))["step"])


def notes_of(path: Path) -> dict[str, Any]:
    """Return the notes that a checkpoint was saved with; nothing for one of an earlier version."""
    about = json.loads((path / "state.json").read_text(encoding="utf-8"))
    notes: dict[str, Any] = about.get("notes", {})
    return notes


def load_weights(path: Path, model: nn.Module) -> None:
    """Copy the saved weights into the model, one tensor at a time, through the host's memory.

    So a GPU never holds a second copy of the weights. Raises UserError if they do not fit.
    """
    trained = _trained(model)
    with safe_open(path / "model.safetensors", framework="pt", device="cpu") as saved:
        saved_shapes = {key: tuple(saved.get_slice(key).get_shape()) for key in saved.keys()}  # noqa: SIM118 - no dict
        shapes = {key: tuple(parameter.shape) for key, parameter in trained.items()}
        if saved_shapes != shapes:
            odd = min(key for key, _ in saved_shapes.items() ^ shapes.items())
            raise UserError(
                f"{path} does not fit this model: {odd} is {saved_shapes.get(odd, 'not')} in it, "
                f"{shapes.get(odd, 'not')} in the model",
                do="resume with the model, train.method and adapters that the run was started with",
            )
        with torch.no_grad():
            for key, parameter in trained.items():
                parameter.copy_(saved.get_tensor(key))


def _require_space(
    folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, ranks: Ranks
) -> None:
    """Raise OSError on rank 0 if there is no room for a checkpoint; called by all ranks."""
    states = _own_states(model, optimizer) if _is_writer(optimizer, ranks) else {}
    tensors = (value for state in states.values() for value in state.values())
    own_bytes = sum(value.nbytes for value in tensors if isinstance(value, torch.Tensor))
    (states_bytes,) = ranks.sum([own_bytes])
    if ranks.is_first:
        weights_bytes = sum(tensor.nbytes for tensor in _trained(model).values())
        size_bytes = weights_bytes + int(states_bytes)
        require_space(folder, size_bytes, f"the checkpoint after step {step}")


def _is_writer(optimizer: torch.optim.Optimizer, ranks: Ranks) -> bool:
    """Return whether this rank writes states: rank 0, or each its own of a sharded optimizer."""
    return ranks.is_first or with_own_states(optimizer) is not optimizer


def _own_states(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, Any]]:
    """Return the states of this rank's optimizer, by the names of their parameters."""
    states = with_own_states(optimizer).state
    return {name: dict(states[p]) for name, p in model.named_parameters() if p in states}


def _load_states(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Give this rank's optimizer the states of its parameters, whichever rank saved them.

    Hyperparameters are not included: those of the resumed run apply, train.bf16_updates too.
    """
    inner = with_own_states(optimizer)
    own = {id(p) for group in inner.param_groups for p in group["params"]}
    parameters = {name: p for name, p in model.named_parameters() if id(p) in own}
    for file in sorted(path.glob("optimizer-*.pt")):
        # To the CPU: else torch puts the states on the GPU of the rank that saved them, whichever
        # rank this is.
        saved = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
        for name in saved.keys() & parameters.keys():
            p = parameters[name]
            inner.state[p] = {
                key: value.to(p.device, copy=True) if isinstance(value, torch.Tensor) else value
                for key, value in fitted(inner, saved[name]).items()
            }


def _trained(model: nn.Module) -> dict[str, torch.Tensor]:
    return {key: p.data for key, p in model.named_parameters() if p.requires_grad}


def _random_state(device: torch.device) -> dict[str, Any]:
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        state["mps"] = torch.mps.get_rng_state()
    return state


def _set_random_state(state: dict[str, Any], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
    elif device.type == "mps" and "mps" in state:
        torch.mps.set_rng_state(state["mps"])
