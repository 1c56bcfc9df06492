"""Benchmarks: counts are exact, times are ratios or medians with the machine beside them."""
