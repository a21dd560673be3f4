"""Measuring on a GPU: workloads, sessions, controls, telemetry, and static analysis of cubins."""
