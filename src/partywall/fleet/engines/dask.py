"""The engine for those who reach their hosts through a Dask cluster: its workers carry requests over ssh.

Workers do not measure, and none is needed on a measured host. Dask promises that a task runs at least once: it repeats
one whose worker is lost, and one that nobody waits for any more may still run. Both are harmless, because the ledger of
the host begins an attempt once. What Dask loses is Unreachable, and the controller asks again.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from partywall import __version__
from partywall.errors import CapabilityError, PartywallError, Problem, UsageError
from partywall.fleet.engines import engine as engines
from partywall.fleet.engines.calling import TIMEOUT_S
from partywall.fleet.engines.engine import Engine, Unreachable
from partywall.fleet.inventory import Place
from partywall.fleet.ledger.granting import Order
from partywall.fleet.ledger.lease import State
from partywall.fleet.ledger.look import Look

T = TypeVar("T", State, Look)
VARIABLE = "DASK_SCHEDULER_ADDRESS"
"""What Dask itself reads. `dask_scheduler` of the inventory goes before it."""
JOINS_S = 10.0
ANSWERS_S = 4 * TIMEOUT_S
"""How long a task may take: it may be asked, bring Partywall in two steps, and be asked again."""


class Dask:
    """Hosts behind the workers of one scheduler. `dask_carries` is the engine that workers use; ssh if not set."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = {place.name: place for place in places}
        for place in places:
            if place.variables.get("dask_carries") == "dask":
                said = f"{place.name}: dask_carries is what workers use, and cannot be dask"
                raise UsageError(Problem(said, "leave it out for ssh", key="dask_carries"))
        self._address = _address(places)
        self._client, self._lock = _joined(self._address), threading.Lock()
        self._numbers, self._of = itertools.count(1), f"partywall-{secrets.token_hex(8)}"

    def hosts(self) -> Sequence[Place]:
        return tuple(self._places.values())

    def ensure(self, host: str, order: Order, token: int) -> State:
        return self._carried(host, Engine.ensure, order, token)

    def state(self, host: str, run: str) -> State:
        return self._carried(host, Engine.state, run)

    def fetch(self, host: str, run: str, since: Mapping[str, int]) -> Look:
        return self._carried(host, Engine.fetch, run, dict(since))

    def stop(self, host: str, run: str, token: int) -> State:
        return self._carried(host, Engine.stop, run, token)

    def _carried(self, host: str, verb: Callable[..., T], *given: Any) -> T:
        """Asks a worker to carry a request. Unreachable if it is lost on the way."""
        future = None
        try:
            future = self._connected(host).submit(
                carried, __version__, self._places[host], verb.__name__, *given,
                key=f"{self._of}-{next(self._numbers)}", pure=False, retries=0,
            )  # fmt: skip
            answer: T = future.result(timeout=ANSWERS_S)
        except Unreachable:
            raise
        except PartywallError as error:
            raise Unreachable(f"{host}: {error}", is_lasting=True) from None
        except ImportError as error:
            said = f"a worker lacks {error.name}; install Partywall {__version__} on all workers"
            raise Unreachable(f"{host}: {said}", is_lasting=True) from None
        # Dask has a dozen exceptions of its own, and says a lost task with any of them.
        except Exception as error:  # noqa: BLE001
            why = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}".rstrip(": ")
            raise Unreachable(f"{host}: Dask lost the request ({why}); look at its scheduler and workers") from None
        else:
            return answer
        finally:
            if future is not None:
                future.release()

    def _connected(self, host: str) -> Any:
        """The client. One that has given its scheduler up, some seconds after it was gone, is made again."""
        with self._lock:
            if self._client.status == "closed":
                try:
                    self._client = _joined(self._address)
                except CapabilityError as error:
                    # It answered before, so it may again.
                    raise Unreachable(f"{host}: {error}") from None
            return self._client


def carried(version: str, place: Place, verb: str, *given: Any) -> Any:
    """Carries out a request, on a worker."""
    if version != __version__:
        said = f"the worker has Partywall {__version__}, and the controller {version}; install the same on both"
        raise Unreachable(f"{place.name}: {said}", is_lasting=True)
    return getattr(_engine(place), verb)(place.name, *given)


@functools.lru_cache(maxsize=4096)
def _made(name: str, variables: tuple[tuple[str, str], ...]) -> Engine:
    """The engine of a host on this worker. It knows whether Partywall was brought to the host."""
    content = dict(variables)
    return engines.named(content.get("dask_carries", "ssh"))([Place(name, (), content)])


def _engine(place: Place) -> Engine:
    return _made(place.name, tuple(sorted(place.variables.items())))


def _address(places: Sequence[Place]) -> str:
    """That of the one scheduler. UsageError if it is not given, or there are several."""
    given = sorted({place.variables.get("dask_scheduler") or os.environ.get(VARIABLE, "") for place in places})
    if len(given) > 1:
        raise UsageError(Problem(f"hosts name several schedulers ({', '.join(given)})", key="dask_scheduler"))
    if not given or not given[0]:
        remedy = f"write dask_scheduler=tcp://ADDRESS:8786 in the inventory, or set ${VARIABLE}"
        raise UsageError(Problem("no scheduler of Dask is named", remedy, key="--engine"))
    return given[0]


def _joined(address: str) -> Any:
    """A client of a scheduler. CapabilityError if it does not answer."""
    try:
        # An optional dependency, and slow to import.
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        raise CapabilityError("Dask is not installed; install it: pip install 'partywall[dask]'") from None
    try:
        return distributed.Client(address, timeout=JOINS_S, set_as_default=False)
    except (OSError, ValueError) as error:
        said = str(error).partition("\n")[0]
        raise CapabilityError(f"Dask's scheduler {address} cannot be reached ({said}); check that it runs") from None
