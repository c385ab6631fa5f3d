"""Read TPU chips with the monitoring library inside libtpu.

Metrics: https://cloud.google.com/tpu/docs/tpu-monitoring-library. It has no power, clocks or
temperature, and its values are means over five seconds.
"""

from collections.abc import Iterator, Mapping, Sequence

from jaxbench.hardware.telemetry.reading import Reading

_METRICS = {
    "load_percent": "duty_cycle_pct",
    "memory_used_bytes": "hbm_capacity_usage",
    "memory_total_bytes": "hbm_capacity_total",
}


class TpuReader:
    """Reader of this host's chips.

    libtpu's lists have a value for each chip and no names. Where JAX has as many local devices, the
    order is taken to be the same, and only the run's devices are kept. Where a chip is two devices
    (TPU v2, v3), every chip of the host is kept, by its index in the list.

    Args:
      places: {device's name: its index among the local devices}.
      num_local_devices: of this host, whether the run uses them or not.
    """

    name = "libtpu"
    reads_energy = False

    def __init__(self, places: Mapping[str, int], num_local_devices: int):
        self._places = places
        self._num_local_devices = num_local_devices

    def read(self) -> Iterator[Reading]:
        """Yield a reading for each device. Raises OSError where libtpu has no values."""
        from libtpu.sdk import tpumonitoring

        lists: dict[str, Sequence[str]] = {}
        errors = []
        for column, metric in _METRICS.items():
            try:
                lists[column] = tpumonitoring.get_metric(metric).data()
            except Exception as error:  # which ones is not documented
                errors.append(f"{metric}: {error}")
        num_chips = max(map(len, lists.values()), default=0)
        if not num_chips:
            raise OSError("; ".join(errors) or "it has no values")
        places = self._places
        if num_chips != self._num_local_devices:
            places = {f"tpu{chip}": chip for chip in range(num_chips)}
        for device, place in places.items():
            values = {
                column: float(values_of_chips[place])
                for column, values_of_chips in lists.items()
                if len(values_of_chips) == num_chips
            }
            yield Reading(device, "tpu", values, errors)
