"""Published power profiles of machines, by name. Watts from a profile are always marked `modelled`.

`cervera-dl120-g6` is table I of Cervera et al. (Jornadas de Paralelismo 2012). The others are results of
SPECpower_ssj2008 as printed by Beloglazov and Buyya (Concurrency and Computation 24, 2012): watts at 0, 10, … 100 % of
the load that the machine can carry.
"""

from __future__ import annotations

from partywall import units
from partywall.power.values import WHOLE_MACHINE, NodeModel

SOURCE = "SPECpower_ssj2008 in Beloglazov and Buyya 2012, {}"


def _loads(name: str, machine: str, cpus: int, *watts: float) -> NodeModel:
    points = tuple((cpus * tenth / 10, value) for tenth, value in enumerate(watts))
    # Servers of one type differ by some percent, and their configuration by more.
    return NodeModel(
        name=name, origin="modelled", source=SOURCE.format(machine), points=points, per="load", band=0.1,
        covers=WHOLE_MACHINE,
    )  # fmt: skip


CERVERA = NodeModel(
    name="cervera-dl120-g6",
    origin="modelled",
    source="Cervera et al. 2012, table I: HP ProLiant DL120 G6, Xeon X3430, 4 cores",
    points=((0, 50), (1, 72), (2, 90), (3, 100), (4, 110)),
    # Figure 7: 2.5 W of 50 W between two ways to run the same load; between machines more.
    band=0.1,
    off_watts=9,
    boot_s=75,
    boot_joules=1.42 * units.WH,
    shutdown_s=35,
    shutdown_joules=0.48 * units.WH,
    covers=WHOLE_MACHINE,
)
PROFILES: dict[str, NodeModel] = {
    profile.name: profile
    for profile in (
        CERVERA,
        _loads("hp-ml110-g4", "HP ProLiant ML110 G4, Xeon 3040, 2 cores", 2,
               86, 89.4, 92.6, 96, 99.5, 102, 106, 108, 112, 114, 117),
        _loads("hp-ml110-g5", "HP ProLiant ML110 G5, Xeon 3075, 2 cores", 2,
               93.7, 97, 101, 105, 110, 116, 121, 125, 129, 133, 135),
    )
}  # fmt: skip
