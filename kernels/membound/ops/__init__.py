"""Public functions, one file an op: checks, registration and launch; never ``cutlass``."""
