"""Tests without worker processes, in the folders of the package; some use a real Valkey."""
