"""Any module made fast for inference: ways of running it are tried by turns, and what helps is kept."""
