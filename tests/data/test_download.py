"""Official files from a server on this machine: fetched once, verified, or one line."""

import errno
import gc
import os

import numpy as np
import pytest

from jaxbench.config import DataConfig
from jaxbench.data.sources import download, tfds
from tests.conftest import MICRO, records, refusal, run_json, table
from tests.data.cifar10_files import batches
from tests.data.file_server import Server, cifar10_archive, mnist_files
from tests.tfds_files import image_feature, label_feature, write_tfds

CIFAR10 = "cifar-10-binary.tar.gz"


# The server's side of a connection that was broken off is closed when it is collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Serves CIFAR-10 to a user with an empty home, who may fetch."""
    server = Server({CIFAR10: cifar10_archive()})
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CACHE_HOME", "TFDS_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JAXBENCH_DOWNLOAD", "1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download, "_TIMEOUT_S", 0.5)
    yield server
    server.close()
    gc.collect()


@pytest.fixture
def load(server, tmp_path, monkeypatch):
    """Loads CIFAR-10 from a server of these ways; returns the set, the lines and the bar."""

    def load(*ways, name="cifar10", **fields):
        table = server.write_table(tmp_path / "table.csv", *ways, dataset=name)
        monkeypatch.setenv("JAXBENCH_DOWNLOADS", table)
        lines, bar = [], []
        data = DataConfig(source="tfds", name=name, **fields)
        dataset = tfds.load(data, progress=lines.append, bar=lambda *shown: bar.append(shown))
        return dataset, lines, bar

    return load


def cache(tmp_path, name="cifar10"):
    return tmp_path / "home" / ".cache" / "jaxbench" / "data" / name


def left(folder):
    """The files that are more than a lock."""
    return sorted(path.name for path in folder.glob("*") if not path.name.endswith(".lock"))


def check_is_cifar10(dataset):
    made = batches()
    stored = np.concatenate([made[f"data_batch_{number}"] for number in range(1, 6)])
    assert dataset.train.labels_Nx.tolist() == stored[:, 0].tolist()
    images_NxP = dataset.train.inputs_Nx.transpose(0, 3, 1, 2).reshape(50, -1)
    assert np.array_equal(images_NxP, stored[:, 1:])
    assert dataset.eval.labels_Nx.tolist() == list(range(10))


def test_the_table_is_whole():
    """Every digest is said to be from somewhere, and no address is without encryption."""
    rows = table(download._TABLE)
    assert all(row["url"].startswith("https://") and row["digest_from"] for row in rows)
    assert all(row["url"].endswith(f"/{row['file']}") for row in rows)
    files = {name: download.listed_files(name) for name in ("cifar10", "mnist")}
    assert {file.name for file in files["mnist"]} == set(mnist_files())
    assert [file.name for file in files["cifar10"]] == [CIFAR10]


def test_it_is_fetched_once_for_all_working_directories(server, load, tmp_path, monkeypatch):
    dataset, lines, bar = load("whole")
    check_is_cifar10(dataset)
    [file] = download.listed_files("cifar10")
    assert f"{CIFAR10} sha256 {file.sha256[:12]}" in dataset.description
    assert left(cache(tmp_path)) == [CIFAR10]
    assert len(lines) == 1 and str(cache(tmp_path)) in lines[0]
    assert bar[-1][1] == bar[-1][2] == 1
    monkeypatch.chdir(tmp_path)
    again, lines, bar = load("gone")
    check_is_cifar10(again)
    assert not lines and not bar and len(server.requests) == 1


def test_mnist_is_four_files(server, load, tmp_path):
    server.files = mnist_files()
    dataset, lines, _ = load("gone", "whole", name="mnist", train_split="test")
    assert dataset.image_shape == (28, 28, 1) and len(dataset.eval) == 10
    assert sorted(server.files) == left(cache(tmp_path, "mnist"))
    for name in server.files:
        assert name in dataset.description


@pytest.mark.parametrize("ways", [("slow",), ("moved",), ("long",), ("gone", "whole")])
def test_servers_of_all_kinds_will_do(load, tmp_path, ways):
    check_is_cifar10(load(*ways)[0])
    assert left(cache(tmp_path)) == [CIFAR10]


@pytest.mark.parametrize(
    ("way", "told"),
    [
        ("broken", "ended after"),
        ("stalled", "timed out"),
        ("drip", "it sent only"),
        ("drip_head", "does not answer"),
        ("wrong", "not the published ones"),
        ("portal", "it has 13 bytes, not"),
        ("gone", "HTTP 404"),
    ],
)
def test_a_server_that_will_not_do_is_one_line(server, load, tmp_path, way, told):
    line = refusal(load, way, told=told)
    assert "--experiment.data.path=FOLDER" in line and "cifar10_batches" in line
    assert left(cache(tmp_path)) == [] and len(server.requests) == 1
    # The next server takes its place.
    check_is_cifar10(load(way, "whole")[0])
    assert left(cache(tmp_path)) == [CIFAR10]


def test_nobody_answers(server, load):
    server.close()
    assert "Other ways: " in refusal(load, "whole", told="Connection refused")


def test_what_is_left_over_is_never_taken_for_the_file(server, load, tmp_path):
    cache(tmp_path).mkdir(parents=True)
    for partial in (b"", bytes(100), server.files[CIFAR10], server.files[CIFAR10] + b"x"):
        (cache(tmp_path) / f"{CIFAR10}.partial").write_bytes(partial)
        refusal(load, "gone", told="HTTP 404")
        check_is_cifar10(load("whole")[0])
        assert left(cache(tmp_path)) == [CIFAR10]
        (cache(tmp_path) / CIFAR10).unlink()


def test_a_damaged_file_is_never_used(load, tmp_path):
    load("whole")
    file = cache(tmp_path) / CIFAR10
    content = file.read_bytes()
    file.write_bytes(content[:500] + bytes(4) + content[504:])
    refusal(load, "gone", told="HTTP 404")
    check_is_cifar10(load("whole")[0])
    assert file.read_bytes() == content


def test_a_full_disk_is_one_line_and_leaves_nothing(load, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        refusal(load, "whole", told="data/cifar10: No space left on device")
    assert left(cache(tmp_path)) == []
    check_is_cifar10(load("whole")[0])


def test_a_folder_that_cannot_be_written_in_is_one_line(load, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".cache").write_text("")
    refusal(load, "whole", told="data/cifar10: Not a directory")


def test_fetching_can_be_forbidden(server, load, tmp_path, monkeypatch):
    forbidden = "data.download=False or JAXBENCH_DOWNLOAD=0 forbids"
    refusal(load, "whole", download=False, told=forbidden)
    monkeypatch.setenv("JAXBENCH_DOWNLOAD", "0")
    refusal(load, "whole", told=forbidden)
    assert not server.requests
    # What is there already is read.
    cache(tmp_path).mkdir(parents=True)
    (cache(tmp_path) / CIFAR10).write_bytes(server.files[CIFAR10])
    check_is_cifar10(load("whole")[0])


def test_a_prepared_set_is_preferred(server, load, tmp_path):
    example = {"image": np.zeros((32, 32, 3), np.uint8), "label": 1}
    features = {"image": image_feature(3), "label": label_feature(10)}
    write_tfds(tmp_path, "cifar10", features, {"train": [example], "test": [example]})
    assert load("whole", path=str(tmp_path))[0].description == "tfds cifar10/1.0.0"
    # Elsewhere it is not: then that is the folder to fetch into.
    (tmp_path / "empty").mkdir()
    check_is_cifar10(load("whole", path=str(tmp_path / "empty"))[0])
    assert left(tmp_path / "empty" / "cifar10") == [CIFAR10] and not cache(tmp_path).exists()


def test_what_the_official_files_do_not_hold_is_not_fetched(server, load):
    refusal(load, "whole", eval_split="tset", told="has no split 'tset'; it has train, test")
    for fields in ({"name": "cifar10:3.0.2"}, {"random_resized_crop": True, "feed": "stream"}):
        refusal(load, "whole", **fields, told="TensorFlow, which prepares it")
    assert not server.requests


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("dataset,file,size_bytes,sha256\ncifar10,a,1,00", "cannot be read: it has no 'url'"),
        ("dataset,file,size_bytes,sha256,url\ncifar10,a,one,00,https://x.y/a", "'one'"),
        (None, "No such file"),
    ],
)
def test_a_table_that_is_none_is_one_line(tmp_path, monkeypatch, text, told):
    monkeypatch.setenv("JAXBENCH_DOWNLOADS", str(tmp_path / "table.csv"))
    if text:
        (tmp_path / "table.csv").write_text(text)
    refusal(download.listed_files, "cifar10", told=told)


def test_an_archive_whose_members_are_others_is_one_line(server, load):
    odd = cifar10_archive({"data_batch_1": np.zeros((2, 3000), np.uint8)})
    for content, told in ((odd, "does not hold whole"), (cifar10_archive()[:9000], "cannot be")):
        server.files = {CIFAR10: content}
        refusal(load, "whole", told=told)


def test_a_run_fetches_and_a_description_does_not(server, tmp_path, run_cli, monkeypatch):
    table = server.write_table(tmp_path / "table.csv", "whole")
    monkeypatch.setenv("JAXBENCH_DOWNLOADS", table)
    monkeypatch.delenv("JAXBENCH_DOWNLOAD")
    fields = {"num_devices": 1, "batch_size": 16, "data.source": "tfds", "data.name": "cifar10"}
    fields |= {"data.image_shape": "(32,32,3)", "data.train_examples": 48, "epochs": 1}
    run = [f"--experiment={MICRO}", *(f"--experiment.{name}={of}" for name, of in fields.items())]
    assert run_cli(*run, "--mode=describe").returncode == 0 and not server.requests
    done = run_cli(*run, "--workdir=run")
    assert done.returncode == 0, done.stderr
    assert f"fetching {CIFAR10} (1 MB) into" in done.stdout and len(server.requests) == 1
    assert f"{CIFAR10} sha256" in run_json(tmp_path / "run")["data"]["description"]
    assert records(tmp_path / "run", "epoch")
