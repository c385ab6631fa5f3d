"""What the Python API returns. Reading it back needs no JAX."""
