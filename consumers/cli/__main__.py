"""`python -m tidegate.consumers.cli` is the same as the installed `tidegate`."""

from .entry import main

if __name__ == "__main__":
    main()
