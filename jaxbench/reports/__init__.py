"""Turn run directories into one page: what was measured, beside what others published.

Nothing here imports JAX: a report is made wherever the run directories are.
"""
