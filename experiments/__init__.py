"""The shipped experiments, one file each; `--experiment=NAME` loads `NAME.py`."""
