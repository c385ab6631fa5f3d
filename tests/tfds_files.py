"""Prepared TFDS folders, written without TensorFlow."""

import json


def image_feature(channels):
    shape = {"dimensions": ["-1", "-1", str(channels)]}
    return {
        "image": {"dtype": "uint8", "shape": shape, "encodingFormat": "png"},
        "pythonClassName": "tensorflow_datasets.core.features.image_feature.Image",
    }


def label_feature(num_classes):
    return {
        "classLabel": {"numClasses": str(num_classes)},
        "pythonClassName": "tensorflow_datasets.core.features.class_label_feature.ClassLabel",
    }


def write_tfds(folder, name, features, splits):
    """A prepared TFDS folder, written without TensorFlow: PNG images in tf.train.Examples.

    `splits` holds lists of {feature: image or whole number}.
    """
    import cv2
    import numpy as np
    from array_record.python import array_record_module
    from tensorflow_datasets.proto import tf_example_pb2

    folder = folder / name / "1.0.0"
    folder.mkdir(parents=True)
    for split, examples in splits.items():
        path = folder / f"{name}-{split}.array_record-00000-of-00001"
        writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
        for example in examples:
            message = tf_example_pb2.Example()
            for key, value in example.items():
                feature = message.features.feature[key]
                if np.ndim(value):
                    # OpenCV writes blue, green, red.
                    png = cv2.imencode(".png", value[..., ::-1] if value.ndim == 3 else value)[1]
                    feature.bytes_list.value.append(png.tobytes())
                else:
                    feature.int64_list.value.append(int(value))
            writer.write(message.SerializeToString())
        writer.close()
    (folder / "features.json").write_text(
        json.dumps(
            {
                "featuresDict": {"features": features},
                "pythonClassName": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
            }
        )
    )
    (folder / "dataset_info.json").write_text(
        json.dumps(
            {
                "name": name,
                "version": "1.0.0",
                "fileFormat": "array_record",
                "splits": [
                    {
                        "name": split,
                        "numBytes": "1",
                        "shardLengths": [str(len(examples))],
                        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                    }
                    for split, examples in splits.items()
                ],
            }
        )
    )
