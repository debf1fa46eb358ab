"""Documents in YAML or JSON: from text to checked models, with every mistake reported at its line."""
