"""Start-up of a rank, up to the first line of training code or of the user's script.

Runs in the ranks and in the zygote, the process that warm ranks are forked from.
"""
