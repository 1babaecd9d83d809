"""Text from causal language models of transformers: a fixed cache, one captured graph for each new token."""
