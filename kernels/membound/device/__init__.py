"""CuTe-DSL device code, one file an op, and the pieces they share. Importing needs ``cutlass``."""
