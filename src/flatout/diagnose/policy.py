"""Every threshold of every finding, in one place: from where on something is worth a word."""

# Shares of a step.
WAITS_FOR_DATA = 0.05
COPIES = 0.02
COLLECTOR = 0.01
OPTIMIZER = 0.03
LAUNCHES = 0.5
IDLE = 0.15
# A lever's predicted gain.
WORTH_A_FINDING = 1.02
# Of the device's memory.
NEARLY_FULL = 0.92
MOSTLY_EMPTY = 0.3
# Workers for each core that the job may use.
TOO_MANY_WORKERS = 1.5
# The slowest rank over the median of all.
STRAGGLER = 1.05
# Compilations after the warm-up.
COMPILES_IN_STEADY_STATE = 1
# A finding's severity, by what it should give.
HIGH, MEDIUM = 1.25, 1.05
