"""The documentation as a site, from the Markdown that one reads in the repository."""
