"""Public functions, one file an op: checks, allocation, registration and launch; never ``cutlass``."""
