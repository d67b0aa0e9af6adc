"""Architectures made small, and the checks of one: for models, plan and experts, and for tests."""
