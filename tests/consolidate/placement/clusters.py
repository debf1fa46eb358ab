"""Random clusters for tests of placement."""

import numpy as np

from partywall.consolidate.document import Cluster
from partywall.consolidate.placement import plan

CURVES = ("cervera-dl120-g6", "hp-ml110-g4", "hp-ml110-g5")


def cluster(seed, hosts=None, guests=None, **limits):
    """A cluster whose guests fit where they are."""
    chance = np.random.default_rng(seed)
    number = hosts or int(chance.integers(2, 9))
    names = [f"h{each}" for each in range(number)]
    specs = {}
    for each in range(guests or int(chance.integers(number, 4 * number))):
        cpus = float(chance.choice([1, 2]))
        demand = float(chance.uniform(0.02, 0.3)) * cpus
        specs[f"g{each}"] = {
            "cpus": cpus,
            "memory": f"{int(chance.choice([1, 2, 4]))}GiB",
            "demand": demand,
            "peak": min(cpus, demand * float(chance.uniform(1, 3))),
            "promise": float(chance.choice([0, 0, 0.1])),
            "host": names[each % number],
            "pinned": bool(chance.random() < 0.1),
            "uses": {"disk": float(chance.uniform(0, 0.3))},
            "suffers": {"disk": {"factor": 0.7}},
            "slo": {"isolation": 0.6} if chance.random() < 0.3 else {},
        }
    return Cluster.model_validate(
        {
            "partywall_cluster": 1,
            "name": "random",
            "hosts": {name: {"cpus": 8, "memory": "32GiB", "power": str(chance.choice(CURVES))} for name in names},
            "guests": specs,
            "apart": [["g0", "g1"]] if number > 1 else [],
            "limits": {"solver": "2s", **limits},
        }
    )


def known(seed, **sizes):
    return plan.known(cluster(seed, **sizes))
