"""Does the consolidation manager's policy save what can be saved, and harm no more than published policies?

Simulates 800 hosts over days of generated load, in several random orders of guests; over PlanetLab's days if PLANETLAB
names a folder with their archives; and over days of Bitbrains' business-critical machines if BITBRAINS names a folder
with their `tasks.parquet` and `fragments.parquet`. The policy has no parameter that depends on the trace. For every day
it is compared with published policies, re-implemented, from the same first placement (all assumptions are in
`consolidate.placement.simulate`). It is on the frontier of a day if no other policy is at least as good in energy,
unserved demand and moves and better in one of them. The bound knows the whole day, divides guests at will, and moves
and switches for nothing; the saving is relative to the first placement, where guests have their full CPUs and unused
hosts are off.

Then it makes a plan for 1,000 guests on 200 hosts, and compares the heuristic with the exact solver on small clusters.

Bar: at least 90 % of the bound's saving on every day; on the frontier of every day; no guest that comes back within an
hour and no host woken before its break-even time; a plan in at most 5 s of CPU time, which moves guests, switches hosts
off and saves energy.

--quick: one day and one order of guests.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from frame import Options, Outcome, bench
from partywall.consolidate import check
from partywall.consolidate.document import Cluster
from partywall.consolidate.measure.simulating import demand_of_day, unplaced
from partywall.consolidate.placement import exact, plan, traces
from partywall.consolidate.placement.bound import least_energy_j
from partywall.consolidate.placement.policies import POLICIES, PUBLISHED
from partywall.consolidate.placement.policies.own import Partywall
from partywall.consolidate.placement.policy import Decisions, Rules
from partywall.consolidate.placement.simulate import first_placement, simulate
from partywall.consolidate.placement.state import guests_of, hosts_of
from partywall.consolidate.values import PolicyResult

SHARE_MIN = 0.9
BITBRAINS_DAYS = (1, 8, 15, 22)
"""Days of the month's trace that are simulated."""
PLAN_S_MAX = 5.0
RULES = {
    "ping-pong": Rules(hold_s=0.0),
    "greedy": Rules(overload_risk=0.45, relief_risk=0.49),
}
PLANTS = {
    "ping-pong": "the policy without its hold time",
    "greedy": "the policy without its reserve for overload",
    "empty": "plans without a step",
}


@bench(plants=PLANTS)
def main(options: Options) -> Outcome:
    rules = RULES.get(options.plant, Rules())
    faults: list[str] = []
    shares = []
    for name, utilisation, order in days(quick=options.quick):
        share, policies = day(name, utilisation, order, rules)
        shares.append(share)
        faults += policies
    if options.plant == "empty":
        plan.decide = lambda *_: Decisions()
        plan.improved = lambda state, *_: state.at
    seconds, empty = plan_s()
    faults += empty
    gaps = solver_gaps(2 if options.quick else 12)
    print(f"plan for 1,000 guests on 200 hosts: {seconds:.1f} s of CPU time")
    print(f"heuristic above the exact solver's placement: mean {np.mean(gaps):.2%}, most {max(gaps):.2%}")
    if seconds > PLAN_S_MAX:
        faults.append(f"the plan took {seconds:.1f} s")
    for fault in faults:
        print(f"FAULT: {fault}")
    figure = f"{min(shares):.1%} of the bound's saving at least over {len(shares)} days, {len(faults)} faults"
    return Outcome(f"{figure} (simulated)", min(shares) >= SHARE_MIN and not faults)


def days(*, quick: bool) -> list[tuple[str, np.ndarray, int]]:
    """(name, utilisation, order)."""
    size = len(check.load(check.find("data-centre"), placed=False).guest_names())
    listed = [(f"generated, seed {seed}", traces.generated(size, seed)) for seed in ((11,) if quick else (11, 12, 13))]
    if folder := os.environ.get("PLANETLAB"):
        listed += [(file.name, traces.read(file)) for file in sorted(Path(folder).glob("*.tar.gz"))]
    if folder := os.environ.get("BITBRAINS"):
        listed += [(f"bitbrains, day {number}", bitbrains(Path(folder), number)) for number in BITBRAINS_DAYS]
    return [(name, each, order) for name, each in listed for order in range(1 if quick else 3)]


def bitbrains(folder: Path, number: int) -> np.ndarray:
    """(machines, samples) of one day's utilisation, five minutes apart, from 0 to 1."""
    cores = {task["id"]: task["cpu_capacity"] for task in pq.read_table(folder / "tasks.parquet").to_pylist()}
    table = pq.read_table(folder / "fragments.parquet")
    ids, lengths, used = (table[name].to_numpy() for name in ("id", "duration", "cpu_usage"))
    series = []
    for machine, capacity in cores.items():
        own = ids == machine
        steps = np.round(lengths[own] / (1000 * traces.INTERVAL_S)).astype(int)
        share = np.repeat(used[own] / capacity, np.maximum(steps, 1))
        series.append(np.clip(share[number * traces.SAMPLES :][: traces.SAMPLES], 0.0, 1.0))
    return np.array([each for each in series if len(each) == traces.SAMPLES])


def day(name: str, utilisation: np.ndarray, order: int, rules: Rules) -> tuple[float, list[str]]:
    """The share of the bound's saving, and what breaks the bar."""
    cluster = check.load(check.find("data-centre"), placed=False)
    hosts, guests = hosts_of(cluster), guests_of(cluster)
    state = first_placement(unplaced(hosts, guests))
    demand = demand_of_day(utilisation, guests, order)
    bound = least_energy_j(hosts, guests, demand, traces.INTERVAL_S) / 3.6e6
    policies = [Partywall(rules), *(POLICIES[each](rules) for each in (*PUBLISHED, "static"))]
    own, *others, static = [simulate(policy, state, demand, traces.INTERVAL_S) for policy in policies]
    print(f"{name}, order {order}: bound {bound:.1f} kWh")
    for each in (own, *others, static):
        print(
            f"  {each.policy:10} {each.energy_kwh:7.1f} kWh, SLAV {each.slav:.2e}, unserved {each.unserved:.3%}, "
            f"{each.moves} moves, {each.ping_pongs} came back, {each.short_cycles} woken too early",
            flush=True,
        )
    share = (static.energy_kwh - own.energy_kwh) / (static.energy_kwh - bound)
    return share, [f"{name}, order {order}: {fault}" for fault in broken(own, others)]


FRONTIER = ("energy_kwh", "unserved", "moves")


def beats(other: PolicyResult, own: PolicyResult) -> bool:
    """Whether a policy is at least as good in every figure of the frontier, and better in one."""
    pairs = [(getattr(other, figure), getattr(own, figure)) for figure in FRONTIER]
    return all(theirs <= ours for theirs, ours in pairs) and any(theirs < ours for theirs, ours in pairs)


def broken(own: PolicyResult, others: Sequence[PolicyResult]) -> list[str]:
    return [f"{other.policy} beats it in {', '.join(FRONTIER)}" for other in others if beats(other, own)] + [
        f"{getattr(own, figure)} {figure}" for figure in ("ping_pongs", "short_cycles") if getattr(own, figure)
    ]


def random_cluster(hosts: int, guests: int, seed: int) -> Cluster:
    chance = np.random.default_rng(seed)
    specs = {}
    for number in range(guests):
        cpus = float(chance.choice([1, 2, 4]))
        demand = float(chance.uniform(0.02, 0.3)) * cpus
        specs[f"g{number}"] = {
            "cpus": cpus,
            "memory": f"{int(chance.integers(512, 4096))}MiB",
            "demand": demand,
            "peak": min(cpus, demand * float(chance.uniform(1.2, 3))),
            "host": f"h{number % hosts}",
            "dirty_rate": f"{int(chance.integers(1, 20))}MB/s",
            "working_set": "128MiB",
            "uses": {"disk": float(chance.uniform(0, 0.05))},
            "suffers": {"disk": {"factor": 0.7}},
            "slo": {"isolation": 0.7} if chance.random() < 0.3 else {},
        }
    curves = ("cervera-dl120-g6", "hp-ml110-g4", "hp-ml110-g5")
    return Cluster.model_validate(
        {
            "partywall_cluster": 1,
            "name": "random",
            "hosts": {
                f"h{number}": {"cpus": 16, "memory": "64GiB", "power": str(chance.choice(curves))}
                for number in range(hosts)
            },
            "guests": specs,
            "apart": [[f"g{number}", f"g{number + 1}"] for number in range(0, guests // 5, 2)],
            "limits": {"moves_at_once": 20, "solver": "10s"},
        }
    )


def plan_s() -> tuple[float, list[str]]:
    """CPU seconds of a plan, and what is wrong with it: a plan that does nothing is quick."""
    cluster = random_cluster(200, 1000, 1)
    begun = time.process_time()
    made = plan.make(plan.known(cluster))
    seconds = time.process_time() - begun
    print(
        f"{len(made.moves)} moves, {made.hosts_on_before} → {made.hosts_on_after} hosts, "
        f"{made.net_j.value / 3600:.0f} Wh saved"
    )
    saves = made.moves and made.hosts_on_after < made.hosts_on_before and made.net_j.value > 0
    return seconds, [] if saves else ["the plan for 1,000 guests saves nothing"]


def solver_gaps(number: int) -> list[float]:
    """The heuristic's energy over the horizon above that of the exact solver's placement, on small clusters."""
    gaps = []
    for seed in range(number):
        known = plan.known(random_cluster(6, 20, 100 + seed))
        rough = plan.make(known, solver="heuristic").solver.objective_j
        best = exact.solve(known.state, known.forecast, known.rules, 10.0, known.state.at, workers=2)
        if best is not None:
            gaps.append(rough / exact.objective_j(known.state, known.forecast, known.rules, best.at) - 1.0)
    return gaps


if __name__ == "__main__":
    main()
