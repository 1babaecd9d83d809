"""Scripts behind every number that we claim."""
