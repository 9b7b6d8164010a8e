"""Benchmarks: each module is a command (`python -m tpc_broker.bench.<name>`) that prints what the documentation
quotes.
"""
