"""What a run did: steady state, intervals, shares of the step, MFU. Reads files, never torch."""
