"""The contract of a store and its state machine, for every store, also encrypted."""
