"""Inside a training process: everything that every adapter shares; imports no framework."""
