"""Why a job is slow: findings from what a run showed."""
