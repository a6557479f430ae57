"""The package itself: what is shipped, its public names, its lowest dependencies."""
