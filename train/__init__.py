"""Training: model, data, steps, checkpoints and export. Nothing here depends on the launcher.

worker.py runs in the ranks, warm.py in the zygote; prepare.py and describe.py run as child
processes.
"""

from ranks.transformers_compat import quicken

quicken()
