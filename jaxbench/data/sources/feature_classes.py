"""Check a prepared TFDS folder before TFDS reads it.

features.json names Python classes, and TFDS imports the modules that they are said to be in, from
the working directory too: a data folder could run code.
"""

import json
import pathlib
from typing import Any

from jaxbench.errors import BadInput
from jaxbench.files import read_text

_FEATURES = "features.json"
# Larger than any description, smaller than what would fill the memory.
_MAX_BYTES = 2**24
_PREFIX = "tensorflow_datasets.core.features."
_CLASSES = {
    "audio_feature.Audio",
    "bounding_boxes.BBoxFeature",
    "class_label_feature.ClassLabel",
    "dataset_feature.Dataset",
    "feature.Tensor",
    "features_dict.FeaturesDict",
    "image_feature.Image",
    "labeled_image.LabeledImage",
    "scalar.Scalar",
    "sequence_feature.Sequence",
    "tensor_feature.Tensor",
    "text_feature.Text",
    "top_level_feature.TopLevelFeature",
    "translation_feature.Translation",
    "translation_feature.TranslationVariableLanguages",
    "video_feature.Video",
}
# The field that names a class: as JSON has it, as protobuf has it, and before TFDS 4.6.
_NAMES_A_CLASS = ("pythonClassName", "python_class_name", "type")


def read_json(path: pathlib.Path) -> Any:
    """Return the content of a small JSON file.

    Raises:
      OSError, ValueError: it is no regular file, too large, or no JSON.
    """
    return json.loads(read_text(path, _MAX_BYTES))


def check_prepared_folder(folder: pathlib.Path) -> None:
    """Raise BadInput where a folder holds pipes or names classes that are not TFDS's own."""
    for path in folder.iterdir():
        if not path.is_file() and not path.is_dir():
            raise BadInput(f"{path}: is no regular file")
    if (folder / _FEATURES).exists():
        _check_classes(folder / _FEATURES, read_json(folder / _FEATURES))


def check_folders_below(root: pathlib.Path) -> None:
    """Check every folder in which TFDS looks for a prepared version of a data set."""
    for depth in range(4):
        for path in root.glob("*/" * depth + _FEATURES):
            check_prepared_folder(path.parent)


def _check_classes(file: pathlib.Path, value: Any) -> None:
    if isinstance(value, dict):
        for key in _NAMES_A_CLASS:
            name = value.get(key)
            if isinstance(name, str) and not _is_known(name):
                raise BadInput(
                    f"{file}: names the class {name[:200]!r}, which TFDS would import; only those "
                    f"of {_PREFIX}* are read"
                )
        for item in value.values():
            _check_classes(file, item)
    elif isinstance(value, list):
        for item in value:
            _check_classes(file, item)
    elif isinstance(value, str):
        # Older features are JSON in a text, which TFDS reads in turn.
        try:
            nested = json.loads(value)
        except ValueError:
            return
        _check_classes(file, nested if isinstance(nested, dict | list) else None)


def _is_known(name: str) -> bool:
    return name.startswith(_PREFIX) and name.removeprefix(_PREFIX) in _CLASSES
