"""The closed loop: which levers help this job, whether it still learns the same, and the plan."""
