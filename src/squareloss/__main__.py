"""`python -m squareloss`."""

from squareloss.cli import main

if __name__ == "__main__":
    main()
