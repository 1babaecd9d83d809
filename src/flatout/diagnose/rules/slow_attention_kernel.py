"""Another kernel computes this attention faster.

torch chooses among several kernels of `scaled_dot_product_attention` by rules; which is fastest depends on
shapes, kind of number and card. Seen by timing each on the job's own shape, at the end of the profile. The
gain is what a call saves, times the calls of a step. It can be wrong where the script's masks rule the
faster kernel out.
"""

from flatout.diagnose import policy
from flatout.diagnose.rule import Rule, Seen
from flatout.levers.attention_kernels import OWN_CHOICE
from flatout.levers.sdpa_backend import SdpaBackend
from flatout.records.finding import Finding


def look(seen: Seen) -> Finding | None:
    """Where the lever may be tried, and should pay."""
    if not any("scaled_dot_product" in name for name in seen.job.habit("operators") or ()):
        return None
    if SdpaBackend.check(seen.job):
        return None
    [settings] = SdpaBackend.variants(seen.job)
    speedup = SdpaBackend.predict(seen.job, settings)
    times = seen.job.habit("attention_ms")
    if speedup < policy.WORTH_A_FINDING:
        return None
    return RULE.finding(
        f"{settings['first']} takes {times[settings['first']]:.3f} ms, "
        f"torch's own choice {times[OWN_CHOICE]:.3f}",
        "torch.nn.attention.sdpa_kernel(...), set_priority=True; flatout tune tries it",
        speedup=speedup,
        arithmetic=f"{seen.job.habit('attention_calls')} calls of a step of {seen.job.step_ms:.1f} ms",
        where=seen.lines(
            "aten::_scaled_dot_product_flash_attention",
            "aten::_scaled_dot_product_efficient_attention",
            "aten::_scaled_dot_product_cudnn_attention",
        ),
    )


RULE = Rule("F306", "a slower attention kernel", look, ("sdpa-backend",))
