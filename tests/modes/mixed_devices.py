"""Devices of several kinds, and what XLA says of a program for them."""

REFUSAL = (
    'INVALID_ARGUMENT: executable is built for device CUDA:0 of type "RTX 2080 Ti"; cannot run it '
    'on device CUDA:1 of type "GTX 1080"'
)


class FakeDevice:
    platform, process_index = "gpu", 0

    def __init__(self, id_, kind):
        self.id, self.device_kind = id_, kind

    def memory_stats(self):
        return None
