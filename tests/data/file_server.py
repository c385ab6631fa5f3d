"""A server on this machine that serves official archives, well or badly; `$JAXBENCH_DOWNLOADS`."""

import contextlib
import gzip
import hashlib
import http.server
import io
import struct
import tarfile
import threading
import time

import numpy as np

from tests.data.cifar10_files import batches


def cifar10_archive(made=None, compresslevel=1):
    """The binary version of CIFAR-10 as an archive, with what else is in the official one."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=compresslevel) as archive:
        folder = tarfile.TarInfo("cifar-10-batches-bin")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        contents = {"readme.html": b"<html>", "batches.meta.txt": b""}
        for name, records_NxR in (made or batches()).items():
            contents[f"{name}.bin"] = records_NxR.tobytes()
        for name, content in contents.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def mnist_files(count=10):
    """{file: its bytes}, in the idx format."""
    generator, files = np.random.default_rng(2), {}
    for prefix in ("train", "t10k"):
        images = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        header = struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28)
        files[f"{prefix}-images-idx3-ubyte.gz"] = gzip.compress(header + images.tobytes())
        labels = struct.pack(">4BI", 0, 0, 8, 1, count) + bytes(range(count))
        files[f"{prefix}-labels-idx1-ubyte.gz"] = gzip.compress(labels)
    return files


class Server:
    """Serves `files` under each of its ways: /WAY/FILE. `requests` has (way, file).

    whole: the file. broken: a third of it. stalled: the same, but the connection stays open. slow:
    4 kB in 10 ms. drip: a byte in 10 ms; drip_head: of the head, too. wrong: other bytes. long:
    more bytes. gone: 404. moved: to `whole`. portal: a page.
    """

    def __init__(self, files):
        self.files, self.requests, self.ending = files, [], threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                with contextlib.suppress(ConnectionError):
                    outer._serve(self)

            def log_message(self, *args):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self):
        self.ending.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self, handler):
        _, way, name = handler.path.split("/")
        self.requests.append((way, name))
        content = self.files[name]
        if way == "gone":
            handler.send_error(404)
            return
        if way == "drip_head":
            self._drip(handler, b"HTTP/1.1 200 OK\r\nX-Padding: " + bytes(10**6))
            return
        if way == "moved":
            handler.send_response(302)
            handler.send_header("Location", f"{self.address}/whole/{name}")
            handler.end_headers()
            return
        if way in ("wrong", "long", "portal"):
            content = {
                "wrong": bytes(len(content)),
                "long": content + bytes(10**6),
                "portal": b"<html>sign in",
            }[way]
        handler.send_response(200)
        if way != "long":
            handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        if way == "drip":
            self._drip(handler, content)
            return
        part = content[: len(content) // 3] if way in ("broken", "stalled") else content
        for start in range(0, len(part), 4096):
            handler.wfile.write(part[start : start + 4096])
            time.sleep(0.01 if way == "slow" else 0)
        if way == "stalled":
            handler.wfile.flush()
            self.ending.wait()

    def _drip(self, handler, content):
        for byte in content:
            handler.wfile.write(bytes([byte]))
            if self.ending.wait(0.01):
                return

    def write_table(self, path, *ways, dataset="cifar10"):
        """Writes a table of downloads that has each file at these ways."""
        lines = ["dataset,file,size_bytes,sha256,url"]
        for name, content in self.files.items():
            digest = hashlib.sha256(content).hexdigest()
            for way in ways:
                url = f"{self.address}/{way}/{name}"
                lines.append(f"{dataset},{name},{len(content)},{digest},{url}")
        path.write_text("\n".join(lines) + "\n")
        return str(path)
