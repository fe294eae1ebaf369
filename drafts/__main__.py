"""`python -m drafts` is the console script `circuit`."""

from drafts.cli import main

if __name__ == "__main__":
    main()
