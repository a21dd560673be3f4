"""What this suite measures, as asv sees it: thin benchmark classes over the workloads."""
