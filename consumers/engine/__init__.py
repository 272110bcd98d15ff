"""The pure core: a signal goes in, actions come out. No IO; time is an argument."""
