"""How much more two workers carry than one, with a load that costs next to nothing itself."""
