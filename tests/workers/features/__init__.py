"""What agent tasks can do on real workers: canvas, retries, signals, tools, cancellation, beat."""
