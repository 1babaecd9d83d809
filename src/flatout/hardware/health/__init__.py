"""What is wrong with a machine: checks that look at a `Machine` record and at nothing else."""
