"""A debugging mode of torch was left on.

Anomaly detection runs the forward pass with stack traces and checks every gradient; a synchronization check
makes the host look at each call. Seen by torch's own switches. What they cost differs from job to job, so no
gain is predicted.
"""

from flatout.diagnose.rule import Rule, Seen
from flatout.records.finding import Finding


def look(seen: Seen) -> Finding | None:
    """Any that is on."""
    on = []
    if seen.job.habit("anomaly_mode"):
        on.append("torch.autograd.set_detect_anomaly")
    if seen.job.habit("sync_debug_mode"):
        on.append("torch.cuda.set_sync_debug_mode")
    if not on:
        return None
    return RULE.finding(f"{' and '.join(on)} is on", "take it out of the script", severity="medium")


RULE = Rule("F203", "a debugging mode is on", look, ("debug-modes",))
