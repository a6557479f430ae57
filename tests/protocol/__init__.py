"""The order of writes: the real code, executed step by step in every order that matters."""
