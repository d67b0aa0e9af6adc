"""`python -m diagnostics.probes.import_child PROGRESS TIMEOUT_S NAME…`: import modules in turn.

The outcome of each is a line of JSON in PROGRESS, so the first module without one is the one that
ended or blocked this process. Its `error` is the last line of what the import raised, or null.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from diagnostics.probes.result import last_line
from machine.memory.process_memory import smaps_rollup

MODEL_TYPE = "model_type:"  # prefix of a Hugging Face model type: the module of its model


def import_each(names: Sequence[str], progress: Path, timeout_s: float) -> None:
    """Import `names` one after the other and record each in `progress` as a line of JSON."""
    faulthandler.enable()
    progress.touch()  # this process has begun: what ends it from here on is an import
    for name in names:
        faulthandler.dump_traceback_later(timeout_s)  # stacks go to the log; the parent ends us
        threads = _threads()  # by id, including faulthandler's, which takes a moment to end
        memory_bytes, had_cuda, error = smaps_rollup("self")["Pss_Anon"], _cuda_is_up(), None
        start = time.perf_counter()
        try:
            _import(name)
        except BaseException as raised:  # noqa: BLE001 - a module might even call sys.exit
            error = last_line(raised)
        seconds = time.perf_counter() - start
        num_threads_started = len(_threads() - threads)
        faulthandler.cancel_dump_traceback_later()
        outcome = {
            "name": name,
            "seconds": seconds,
            "error": error,
            "added_private_bytes": smaps_rollup("self")["Pss_Anon"] - memory_bytes,
            "num_threads_started": num_threads_started,
            "initialised_cuda": _cuda_is_up() and not had_cuda,
        }
        with progress.open("a", encoding="utf-8") as file:
            file.write(json.dumps(outcome) + "\n")


def _import(name: str) -> None:
    if not name.startswith(MODEL_TYPE):
        importlib.import_module(name)
        return
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

    # As AutoModelForCausalLM does: the name of the module does not always follow from the type.
    model_class = MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[name.removeprefix(MODEL_TYPE)]]
    importlib.import_module(model_class.__module__)


def _threads() -> set[int]:
    return {thread.id for thread in psutil.Process().threads()}


def _cuda_is_up() -> bool:
    cuda = getattr(sys.modules.get("torch"), "cuda", None)  # a torch that failed may lack it
    return cuda is not None and bool(cuda.is_initialized())


if __name__ == "__main__":
    import_each(sys.argv[3:], Path(sys.argv[1]), float(sys.argv[2]))
