"""Every threshold of the fleet's findings, with its reason."""

# "Now" for what moves: long enough to outlast an evaluation's pause or a restart, short enough to act on.
RECENT_S = 900
RECENT_STEP_S = 30
# So many of the recent looks must have seen a device before it can be called idle: one that just came is not.
RECENT_SEEN = 0.8

# A GPU that missed an answer is not lost; one that gave none for so long is.
DOWN_S = 120

# Below this share of time with a kernel, nobody uses a GPU: monitoring and displays run a few kernels, too.
IDLE_SHARE = 0.02
# Memory that a driver keeps for itself stays below this.
HELD_BYTES = 1 << 30

# Kernels that leave most of a GPU empty: small batches, small ones. Below these shares, while kernels run ...
LOW_SM_SHARE = 0.3
LOW_TENSOR_SHARE = 0.03
# ... for at least this share of the time: below, the GPU waits, which is another matter.
MOSTLY_RUNNING = 0.6
# A job that could be this many times as fast by its own floors, and does so little of the peak, is worth it.
WORTH_TUNING = 1.5
LOW_MFU = 0.3

# Lost to heat over the window, of the time that it was there, and at least so long.
THROTTLED_SHARE = 0.01
THROTTLED_S = 300.0
# A limit so far below the default was lowered by somebody; at the default, full load reaches the cap.
LOWERED_LIMIT = 0.95

# A rank is slow when its steps take so much longer than those of the others: less is noise.
SLOW_RANK = 1.15
RANKS_SHOWN = 3
RANKS_OF_ONE_JOB = 16

# Training without a checkpoint for longer than this; a job younger than that had no occasion.
CHECKPOINT_AGE_S = 3600.0
# A job's file is written every other second; without a change for so long, nobody writes it.
SILENT_S = 300
# Clocks that differ by more than this make ages wrong that are taken from two machines.
CLOCKS_DIFFER_S = 60.0

# A GPU that was known within this time, or within the window if that is longer, and is no longer there.
KNOWN_S = 3600.0
# A window is looked at in so many steps: what a query costs does not grow with it.
STEPS = 288
LEAST_STEP_S = 30
# So many of a kind are named in a note; thousands would hide what matters.
NAMED_IN_NOTES = 4
# Two exporters that tell of one GPU within this time both live; else it has moved.
BOTH_LIVE_S = 60.0

# Clock limits that nobody wants. At its power cap, a card under full load is as it should be.
UNWANTED_REASONS = ("thermal_software", "thermal_hardware", "power_brake", "hardware_slowdown")
