"""Real worker processes: scenarios by what happens to them, features by what agent tasks can do."""
