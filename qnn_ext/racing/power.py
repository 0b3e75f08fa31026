"""The energy that a machine's processors take, read from Linux's powercap (Intel's RAPL, and AMD's in the same place).

A counter is that of a whole package: it holds what the package takes when idle, and what other processes make it take.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import QnnError

POWERCAP = Path("/sys/class/powercap")


class PowerError(QnnError):
    """Why this machine's energy cannot be read."""


@dataclass(frozen=True)
class _Counter:
    """energy: the file that counts microjoules; wraps: the value behind which it starts at 0 again"""

    energy: Path
    wraps: int


class Meter:
    """Joules of all packages. Raises PowerError if none can be read, which says why."""

    def __init__(self, folder: Path = POWERCAP) -> None:
        zones = sorted(folder.glob("*-rapl:*")) if folder.is_dir() else []
        packages = [zone for zone in zones if zone.name.count(":") == 1]  # the zones below are parts of these
        if not packages:
            raise PowerError(
                f"the energy of this machine cannot be read: there is no RAPL counter in {folder}, as in most virtual "
                "machines and on CPUs without one"
            )
        try:
            self._counters = [
                _Counter(zone / "energy_uj", int((zone / "max_energy_range_uj").read_text())) for zone in packages
            ]
            self.read()
        except PermissionError as error:
            raise PowerError(
                f"the energy of this machine cannot be read without rights to {error.filename}: run as root, or have "
                "root allow it with chmod a+r"
            ) from None
        except (OSError, ValueError) as error:
            raise PowerError(f"the energy of this machine cannot be read: {error}") from None

    def read(self) -> list[int]:
        """The counters now, in microjoules."""
        return [int(counter.energy.read_text()) for counter in self._counters]

    def since(self, before: list[int]) -> float:
        """Joules since the counters were read. Correct as long as none has wrapped around twice, for minutes."""
        taken = zip(self._counters, before, self.read(), strict=True)
        return sum((after - first) % (counter.wraps + 1) for counter, first, after in taken) / 1e6
