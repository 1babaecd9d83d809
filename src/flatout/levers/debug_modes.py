"""Debug modes that were left on."""

from flatout.levers.job import JobFacts, amdahl
from flatout.levers.lever import Lever, Settings


class DebugModes(Lever):
    """Turns off autograd's anomaly detection and the sync debug mode, where a script left them on.

    Anomaly detection records a stack trace for each operation and checks each gradient for NaN: it can double
    the time of a step and changes no number.
    """

    id = "debug-modes"
    title = "debug modes off"
    safety = "exact"

    @classmethod
    def check(cls, job: JobFacts) -> str:
        """Only where one is on."""
        return "" if job.habit("anomaly_mode") or job.habit("sync_debug_mode") else "none is on"

    @classmethod
    def predict(cls, job: JobFacts, settings: Settings) -> float:
        """Half of the host's time in forward and backward."""
        shares = job.host_shares
        return amdahl(shares.get("forward", 0.0) + shares.get("backward", 0.0), 2.0)

    def apply(self) -> None:
        """Off."""
        torch = self.scene.torch
        self._anomaly = torch.is_anomaly_enabled()
        self._check_nan = torch.is_anomaly_check_nan_enabled()
        self._sync = torch.cuda.get_sync_debug_mode() if torch.cuda.is_initialized() else 0
        torch.autograd.set_detect_anomaly(False)
        if self._sync:
            torch.cuda.set_sync_debug_mode(0)

    def undo(self) -> None:
        """As they were."""
        torch = self.scene.torch
        torch.autograd.set_detect_anomaly(self._anomaly, self._check_nan)
        if self._sync:
            torch.cuda.set_sync_debug_mode(self._sync)
