"""Every rule. Codes are never reused."""

from flatout.diagnose.rule import Rule
from flatout.diagnose.rules import (
    allocator_retries,
    collector_pauses,
    debug_modes,
    full_precision,
    graph_breaks,
    launch_bound,
    loader_starved,
    memory_mostly_empty,
    memory_nearly_full,
    no_mixed_precision,
    no_pinning,
    recompiles,
    straggler,
    throttled,
    too_many_workers,
    unfused_optimizer,
)

RULES: tuple[Rule, ...] = (
    loader_starved.RULE,
    too_many_workers.RULE,
    no_pinning.RULE,
    launch_bound.RULE,
    collector_pauses.RULE,
    debug_modes.RULE,
    full_precision.RULE,
    no_mixed_precision.RULE,
    unfused_optimizer.RULE,
    recompiles.RULE,
    graph_breaks.RULE,
    memory_nearly_full.RULE,
    memory_mostly_empty.RULE,
    allocator_retries.RULE,
    throttled.RULE,
    straggler.RULE,
)
BY_CODE = {rule.code: rule for rule in RULES}
