"""Bandwatch: continuous performance tracking for suites of memory-bound GPU kernels."""
