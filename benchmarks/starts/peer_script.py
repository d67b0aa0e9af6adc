"""The script of a torchrun or accelerate user: import, load, meet; then wait to be ended.

`torchrun … peer_script.py OUT MODEL LOCK`: MODEL is a folder, or "-" for none; LOCK is a file that
each rank locks while it imports and loads, or "-". Times (monotonic seconds) go to
OUT/ATTEMPT/rankN.json. Nothing of Airlock is imported; the libraries are those that an Airlock rank
imports.
"""

import contextlib
import fcntl
import json
import os
import sys
import time
from pathlib import Path


def main() -> None:
    """Bring this rank up to its first barrier."""
    out, model_path, lock_path = sys.argv[1:]
    times = {"begin": time.monotonic()}
    with contextlib.ExitStack() as stack:
        if lock_path != "-":
            lock = stack.enter_context(Path(lock_path).open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        times["admitted"] = time.monotonic()

        import pyarrow  # noqa: F401
        import torch
        import torch.distributed as dist
        from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401
        from transformers.models.qwen3 import modeling_qwen3  # noqa: F401

        times["imported"] = time.monotonic()
        model = None
        if model_path != "-":
            model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.bfloat16)
        times["loaded"] = time.monotonic()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:  # accelerate tells a single process nothing about a group
        alone = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=alone, rank=0, world_size=1)
    dist.barrier()
    times["ready"] = time.monotonic()
    folder = Path(out) / os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**times, "pid": os.getpid()})
    temporary = folder / f".rank{dist.get_rank()}"
    temporary.write_text(text)
    temporary.rename(folder / f"rank{dist.get_rank()}.json")
    time.sleep(3600)
    del model


if __name__ == "__main__":
    main()
