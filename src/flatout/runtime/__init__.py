"""Starting and keeping a job: trials that leave no trace, and no process behind."""
