"""The micro-benchmarks of links over two processes."""

import json

from tests.integration.test_processes import Processes

MEASURE = """
import json, sys
from jaxbench.distributed import coordination, coordinator, signals, watch
signals.raise_on_signals()
port, index = int(sys.argv[1]), int(sys.argv[2])
config = coordinator.CoordinatorConfig(f"localhost:{port}", 2, index, 60, 10)
with coordination.process_group(config, lambda e: watch.ExitStatus("failed", "no", 7, str(e))):
    from jaxbench.config import Experiment
    from jaxbench.distributed.mesh import create_mesh
    from jaxbench.microbench.collectives import measure_collectives, measure_pairs
    mesh, how = create_mesh(Experiment(parallelism="shard_map")), {"rounds": 3, "window_s": 0.01}
    shown = []
    rates = measure_collectives(mesh, most_bytes=4096, show=shown.append, **how)
    pairs = measure_pairs(mesh, num_bytes=4096, show=shown.append, **how)
    print(json.dumps({
        "positive": all(one.bus_bytes_per_s[0] > 0 for one in rates),
        "rates": [(one.operation, one.num_devices, one.num_bytes) for one in rates],
        "pairs": [(one.pair, one.num_bytes, one.bytes_per_s[0] > 0) for one in pairs],
        "shown": shown,
    }))
"""


def test_two_processes_measure_collectives_and_pairs_together(tmp_path):
    """If they disagreed about sizes, windows or calls, they would wait for one another."""
    started = Processes(tmp_path, command=MEASURE)
    assert started.wait() == [0, 0], started.log(0) + started.log(1)
    first, second = (json.loads(started.output(index).splitlines()[-1]) for index in range(2))
    assert first == second and first["positive"]
    operations = ("all_reduce", "all_gather", "reduce_scatter")
    assert first["rates"] == [[one, 4, size] for size in (1024, 4096) for one in operations]
    # Devices 0 and 1 are of the first process, 2 and 3 of the second.
    places = [[a, b] for a in range(4) for b in range(a + 1, 4)]
    assert first["pairs"] == [[pair, 4096, True] for pair in places]
