"""What is specific to one store or to some. The promises of all stores are in tests/contract."""
