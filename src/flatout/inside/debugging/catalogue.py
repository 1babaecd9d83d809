"""Every debug switch, in the order in which people need them."""

from flatout.inside.debugging.anomaly import Anomaly
from flatout.inside.debugging.blocking import Blocking
from flatout.inside.debugging.deterministic import Deterministic
from flatout.inside.debugging.memory_history import MemoryHistory
from flatout.inside.debugging.switch import Switch
from flatout.inside.debugging.sync import Sync

SWITCHES: tuple[type[Switch], ...] = (Blocking, Anomaly, Deterministic, Sync, MemoryHistory)
BY_NAME = {switch.name: switch for switch in SWITCHES}
