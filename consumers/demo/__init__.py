"""`tidegate demo`: a shop whose repeats, failures and repairs end in one effect, on parts that start by themselves."""
