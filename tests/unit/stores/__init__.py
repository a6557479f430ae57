"""What is specific to one store or to some; what all promise is in tests/contract."""
