"""Benchmarks on real parts: each measures both sides in one run, prints a table and writes `build/bench/NAME.json`."""
