"""Fit the model of predicted rates again: `jaxbench calibrate [ROWS.csv ...]`.

Rows of your own rates, in the columns of jaxbench/analysis/published/rates.csv, are added to its
rows. The fit and the errors of rows left out are written to --out; a prediction reads them with
--calibration=FILE. Without rows the file that jaxbench ships is made again.
"""

import sys

from absl import flags

from jaxbench.cli import entry_point
from jaxbench.errors import BadInput
from jaxbench.paths import user_path

_OUT = flags.DEFINE_string("out", "calibration.json", "The file to write.")


def main(paths: list[str]) -> int:
    """Fit, and write the calibration."""
    from jaxbench.predict.calibration import calibrate, save
    from jaxbench.predict.rates import read_rates

    rates = [*read_rates(), *(rate for path in paths for rate in read_rates(user_path(path)))]
    out = user_path(_OUT.value)
    # A device or a pipe would be replaced.
    if (out.exists() and not out.is_file()) or not out.parent.is_dir():
        raise BadInput(f"--out={out}: must be a file in a folder that exists")
    save(calibrate(rates, lambda line: print(line, file=sys.stderr)), out)
    print(f"{len(rates)} rates; written to {out}")
    return 0


if __name__ == "__main__":
    entry_point.run_with_arguments(main)
