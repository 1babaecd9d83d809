"""`flatout` without a command: looks at the machine and the folder, and suggests the next one."""
