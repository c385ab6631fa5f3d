"""Published rows beside measured ones: who wrote them, and on what."""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jaxbench.analysis.published import PublishedRate, load_published, published_rates
from jaxbench.analysis.rate import Estimate
from jaxbench.hardware.peak_table import without_maker
from jaxbench.metrics import count, plain
from jaxbench.predict.rates import arithmetic_of, devices_of
from jaxbench.records.same import same_images
from jaxbench.reports.context import Measurement
from jaxbench.reports.runs import ReportedRun
from jaxbench.reports.work import grouped
from jaxbench.tables.columns import Cell, Column, metric_column

# Published rates that a table shows for a network on a machine, at most.
MOST = 5
# A published row, or a measurement in its words.
Row = dict[str, Any]
MEASURED, PUBLISHED = Cell("measured", "measured"), Cell("published", "published")
AT_LEAST = Cell("published: at least", "published")
# Of rows of both kinds.
ORIGIN = Column("origin", "origin", left=True)
HARDWARE = Column("hardware", "machine")
PRECISION = Column("precision", "precision")
BATCH = metric_column("batch_size", "global_batch")
SOFTWARE = Column("software", "framework")
SOURCE = Column("when, by whom", "cited")


def beside_note(more: int) -> str:
    """Say what published rates beside measured ones have in common with them."""
    return (
        "Published: by others at other times, on as many of the same devices, which multiply in "
        "the same type: fp16 and bf16 are one, fp32 is in TF32 or bf16 if the device does so by "
        "default. JAX's are first, then those with the nearest batches. “at least”: from the time "
        "of a whole training." + f" {more} more are in rates.csv of jaxbench." * bool(more)
    )


class Sources:
    """Numbers the sources of a table's rows, for its note."""

    def __init__(self):
        self._numbers: dict[str, int] = {}

    def rows(self, table: str, keep: Callable[[Row], bool] = lambda row: True) -> list[Row]:
        """Return the rows of a published table that `keep` is true of, each with its source."""
        return self._cited(filter(keep, load_published(table)))

    def rates(self, rates: Iterable[PublishedRate]) -> list[Row]:
        """Return published rates as rows, each with its source."""
        return self._cited(map(rate_row, rates))

    def _cited(self, published: Iterable[Row]) -> list[Row]:
        rows = []
        for row in published:
            # The published words for the hardware, with the number of devices if they lack it.
            hardware, devices = row["hardware"], row.get("devices")
            counted = devices == 1 or "+" in hardware or hardware[0].isdigit() or "TPU" in hardware
            machine = hardware if counted else f"{devices} × {hardware}"
            name = "; ".join(filter(None, (row["source"], row.get("framework"))))
            number = self._numbers.setdefault(name, len(self._numbers) + 1)
            parts = (f"{row.get('date') or 'no date'} [{number}]", row.get("note"))
            cited = ", ".join(filter(None, parts))
            rows.append({"origin": PUBLISHED, **row, "machine": machine, "cited": cited})
        return rows

    @property
    def note(self) -> str:
        return " ".join(f"[{number}] {name}." for name, number in self._numbers.items())


def measured_row(row: Measurement) -> Row:
    """Return a measurement in the words of published rows."""
    run = row.run
    return {
        "origin": MEASURED,
        "run": run,
        "feed": row.feed,
        "machine": run.machine,
        "precision": run.precision,
        "global_batch": run.batch_size,
        "framework": run.framework,
        "cited": "; ".join((run.date, run.framework, row.data)),
    }


def rate_row(rate: PublishedRate) -> Row:
    """Return a published rate in the words of the other published rows."""
    target, devices = devices_of(rate.device, rate.num_devices)
    assumed = "batch assumed" if rate.batch_assumed == "yes" else ""
    return {
        **vars(rate),
        "origin": AT_LEAST if rate.lower_bound == "yes" else PUBLISHED,
        "model": rate.network,
        "hardware": rate.hardware or f"{devices} × {target.kind}",
        "devices": rate.num_devices,
        "framework": rate.framework or rate.software,
        "global_batch": rate.batch_size,
        "images_per_s": rate.examples_per_s,
        "rate": Estimate(rate.examples_per_s),
        "note": ", ".join(filter(None, (assumed, rate.note))) or None,
    }


def rates_words(rates: Sequence[PublishedRate]) -> str:
    """Return the first of some published rates in a line, and how many more there are."""
    texts = []
    for row in map(rate_row, rates[:MOST]):
        at_least = "at least " * (row["lower_bound"] == "yes")
        batch = f"batch {count(row['global_batch'])}"
        what = (row["precision"], batch, row["framework"], row["date"], row["note"])
        texts.append(at_least + ", ".join(filter(None, (plain(row["images_per_s"]), *what))))
    more = [f"{len(rates) - MOST} more"] if len(rates) > MOST else []
    return "; ".join([*texts, *more])


def work_key(
    network: str | None, kind: str, devices: int | None, precision: str, matmul: str | None = None
) -> tuple:
    """Return what a rate and a published one beside it have in common.

    That is the network, the kind and number of JAX devices, and what they multiply in.
    """
    return network, without_maker(kind), devices, arithmetic_of(kind, precision, matmul)


def run_key(run: ReportedRun) -> tuple:
    """Return the `work_key` of a run; it has no network if that is not a published one."""
    network = run.published_network
    dataset = network and dataset_of(network)
    other_images = dataset and not same_images(run.setting, dataset)
    # Nobody published rates of several models at once.
    if run.changed_devices or other_images or run.config.get("replicas") == "independent":
        network = None
    matmul = run.environment.get("matmul_precision")
    precision = run.config.get("precision", "")
    return work_key(network, run.device_kind, run.num_devices, precision, matmul)


def nearest(work: tuple, batches: Iterable[float | None]) -> list[PublishedRate]:
    """Return the published rates of a `work_key`: JAX's first, then by how near the batch is.

    Of equals the newest is first.
    """
    known = [batch for batch in batches if isinstance(batch, int | float) and batch > 0]

    def distance(rate: PublishedRate) -> tuple:
        ratios = [abs(math.log(rate.batch_size / batch)) for batch in known]
        return not rate.software.startswith("JAX"), min(ratios, default=0.0)

    rates = sorted(_by_work().get(work, ()), key=lambda rate: rate.date or "", reverse=True)
    return sorted(rates, key=distance)


@functools.cache
def _by_work() -> Mapping[tuple, Sequence[PublishedRate]]:
    def key(rate: PublishedRate) -> tuple:
        target, devices = devices_of(rate.device, rate.num_devices)
        # A published fp32 is not TF32, which has its own name.
        return work_key(rate.network, target.kind, devices, rate.precision, "highest")

    return grouped(published_rates(), key)


def dataset_of(network: str) -> str | None:
    """Return the data set whose images the published rates of a network are of, if it is named."""
    named = (one.dataset for one in published_rates() if one.network == network and one.dataset)
    return next(named, None)
