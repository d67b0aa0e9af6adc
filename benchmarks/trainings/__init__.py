"""Trainings that are measured: real ranks and their memory, and the same work by Airlock and peers.

Run by benchmarks/throughput.py and benchmarks/plan.py; training.py and peer_training.py are also
what their ranks run.
"""
