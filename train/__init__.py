"""Training: model, data, steps, checkpoints, export. Nothing here knows of the launcher.

worker.py runs in the ranks, warm.py in the zygote; prepare.py and describe.py are children.
"""
