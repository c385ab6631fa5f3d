"""Restore the power limits of GPUs when the process that changed them has ended, however it did.

    python power_guardian.py '{"0000:0F:00.0": 400000}'

A script of its own, which needs nothing but nvidia-ml-py. It says that it is ready, reads standard
input, a pipe that the measuring process holds and never writes to, and sets the limits (milliwatts
by PCI address) at its end: the system closes the pipe of a process that is killed, too.
"""

import json
import signal
import sys

import pynvml


def main(limits: str) -> int:
    """Wait for the end of standard input, then set the limits; return 1 if a board refuses."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    pynvml.nvmlInit()
    print("ready", flush=True)
    sys.stdin.buffer.read()
    failed = 0
    for address, limit_mw in json.loads(limits).items():
        try:
            handle = pynvml.nvmlDeviceGetHandleByPciBusId(address)
            pynvml.nvmlDeviceSetPowerManagementLimit(handle, limit_mw)
        except pynvml.NVMLError as error:
            print(f"{address}: {error}", file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
