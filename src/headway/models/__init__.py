"""Model architectures over a few operators, and the loading of weights and tokenizers. Knows no scheduler."""
