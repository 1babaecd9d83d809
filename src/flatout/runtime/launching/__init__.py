"""The same job on a cluster: the files that Slurm, Kubernetes and SkyPilot take."""
