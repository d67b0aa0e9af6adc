"""The parts of `python -m benchmarks.gpu`, which runs them on one NVIDIA GPU."""
