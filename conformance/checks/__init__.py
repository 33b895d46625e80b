"""The checks, one module per area of the contract. `registry.all_checks` imports them all."""
