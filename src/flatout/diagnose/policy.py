"""Every threshold of every finding, in one place: from where on something is worth a word."""

# Shares of a step.
WAITS_FOR_DATA = 0.05
COPIES = 0.02
COLLECTOR = 0.01
# It comes every few steps: in fewer than these, its share is chance.
COLLECTOR_STEPS = 20
OPTIMIZER = 0.03
LAUNCHES = 0.5
IDLE = 0.15
# A lever's predicted gain.
WORTH_A_FINDING = 1.02
# Of the device's memory.
NEARLY_FULL = 0.92
MOSTLY_EMPTY = 0.3
# Reserved but not used, at the peak.
FRAGMENTED = 0.2
# What a step leaves behind, in bytes.
LEAK_BYTES = 64 << 10
# Kernels that take no longer than this are not worth a launch each, in microseconds.
TINY_KERNEL_US = 5.0
TINY_KERNELS = 500
# Of a step.
STALLS = 0.02
MEMORY_BOUND = 0.3
COMMUNICATION = 0.05
LAYOUT = 0.02
ATTENTION_BY_HAND = 0.05
LARGE_LOSS = 0.05
# Of the operations of all products, and of a step the products themselves.
OFF_TENSOR_CORES = 0.1
PRODUCTS = 0.1
UNALIGNED = 0.05
# A worker that is busy for so much of the time cannot make more.
WORKERS_BUSY = 0.85
# Milliseconds of Python for one sample.
SLOW_SAMPLE_MS = 1.0
# A step over that of an earlier run.
REGRESSION = 1.05
# Workers for each core that the job may use.
TOO_MANY_WORKERS = 1.5
# By what share of a step the slowest rank is behind the others, in what it does alone.
STRAGGLER = 0.05
# Steps after the first ones that compiled: an epoch's last batch and an evaluation each do so once or twice.
COMPILES_IN_STEADY_STATE = 4
# A finding's severity, by what it should give.
HIGH, MEDIUM = 1.25, 1.05
