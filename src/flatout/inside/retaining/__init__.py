"""Who holds the tensors that steps leave behind: marks, the search upwards, names, lines."""
