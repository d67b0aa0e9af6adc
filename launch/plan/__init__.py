"""The plan: what a run takes of GPUs and host, before anything of it is started."""
