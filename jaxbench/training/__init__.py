"""The loop, the train step, and the parts of both."""
