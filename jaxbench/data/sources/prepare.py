"""Prepare a TFDS data set as ArrayRecord: `python -m jaxbench.data.sources.prepare NAME DATA_DIR`.

It runs as a child of the training process, because it imports TensorFlow. Progress goes to stderr
(TFDS's own bars). If it fails, the last line on stdout says why.
"""

import sys

from jaxbench.errors import BadInput

_CONNECT_TIMEOUT_S = 5


def main(name: str, data_dir: str) -> int:
    """Download and prepare; return the exit code."""
    print(f"preparing {name} in {data_dir}", file=sys.stderr, flush=True)
    try:
        import importlib_resources  # noqa: F401  TFDS needs it and does not require it
        import requests

        from jaxbench.hardware.system import import_tfds

        tfds = import_tfds()
    except BadInput as error:
        print(error)
        return 1
    except ImportError as error:
        print(f"{error}; pip install 'jaxbench[prepare]'")
        return 1
    try:
        builder = tfds.builder(name, data_dir=data_dir, file_format="array_record", try_gcs=False)
    except tfds.core.DatasetNotFoundError:
        print(f"TensorFlow Datasets has no {name!r}")
        return 1
    # TFDS retries a dead network for minutes; one short look answers in seconds.
    for url in builder.url_infos or ():
        try:
            requests.head(url, timeout=_CONNECT_TIMEOUT_S, allow_redirects=True)
        except requests.RequestException as error:
            print(f"{url} cannot be reached: {type(error).__name__}")
            return 1
    try:
        builder.download_and_prepare(
            download_config=tfds.download.DownloadConfig(try_download_gcs=False)
        )
    except Exception as error:
        print(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
